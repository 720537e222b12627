"""The form of a preset file: a provider's tables for the http adapter, and what an operator must know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from deliveryd.channels.mapping import texts_in
from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.http.expressions import compile_expression
from deliveryd.http.json_pointer import follow, parse_pointer
from deliveryd.model import BLOCKS
from deliveryd.options.suggestion import suggestion
from deliveryd.options.tables import Table
from deliveryd.options.units import Pointer, Positive

KeyValue = StrictStr | StrictBool | StrictInt


def _block(name: str) -> str:
    if name not in BLOCKS:
        raise ValueError(f"must be {', '.join(BLOCKS[:-1])} or {BLOCKS[-1]}{suggestion(name, BLOCKS)}")
    return name


Block = Annotated[str, AfterValidator(_block)]
KeyName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

KEY_USE = re.compile(r"\{key\.([^{}]*)\}")
"""A placeholder for a key of the operator; the others are placeholders of the mapping."""

NEEDS = "needs"
"""Key of a table within `table` left out if a key of this list has no value or is false."""

SECRET_USE = re.compile(r"\{secret\.([^{}|]*)(?:\|[^{}]*)?\}")

_ECHOED = re.compile(r"\{message\.(?:key|id)[|}]")
_REQUEST = ("url", "query", "headers", "json", "form", "variants")
"""The keys of `table` that a request is made of."""

_TYPES: Mapping[str, type] = {"text": str, "integer": int, "boolean": bool}

_SANDBOX_USE = re.compile(r"\{([a-z]+(?:\.[a-z]+)?)\}")
SANDBOX_ID_VALUES = ("hex", "number", "reference")
SANDBOX_VALUES = (
    *("hex", "id", "id.number", "to", "to.digits", "to.number", "reference", "secret"),
    *("at.iso", "at.unix", "at.text", "at.ms", "at.utc", "at.plain", "at.london"),
    *("signature.timestamp", "signature.token", "signature.hash"),
)
"""The placeholders of answers and reports of the sandbox."""


class PresetKey(Table):
    """A key that the operator sets beside `adapter`."""

    description: str = Field(description="what it is, in the provider's words")
    example: KeyValue = Field(description="a value for the configuration to copy")
    type: Literal["text", "integer", "boolean"] = Field("text", description="type of its value")
    required: bool = Field(False, description="whether the operator must set it")
    advised: bool = Field(False, description="whether the configuration to copy sets it, though not required")
    default: KeyValue | None = Field(
        None, description="its value where the operator sets none; may hold `{key.NAME}`"
    )
    pattern: str | None = Field(None, description="regular expression that the whole text matches")
    only_with: KeyName | None = Field(None, description="key without which this one has no effect")

    @field_validator("pattern")
    @classmethod
    def _an_expression(cls, pattern: str | None) -> str | None:
        compile_expression(pattern or "")
        return pattern

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.required and self.default is not None:
            raise ValueError("required and default can't be combined")
        if self.pattern is not None and self.type != "text":
            raise ValueError('pattern needs type = "text"')
        for name, value in (("example", self.example), ("default", self.default)):
            problem = self.problem(value) if value is not None else None
            if problem:
                raise ValueError(f"{name} {value!r} {problem}")
        return self

    def problem(self, value: object) -> str | None:
        """Return what is wrong with a value of this key, or None."""
        if type(value) is not _TYPES[self.type]:
            return f"must be {_ARTICLES[self.type]}"
        if self.pattern is not None and not compile_expression(self.pattern).matches_all(str(value)):
            return f"must match {self.pattern}"
        return None


_ARTICLES: Mapping[str, str] = {"text": "a text", "integer": "an integer", "boolean": "true or false"}


class PresetSecret(Table):
    """A secret that the operator gives as a file: `secrets = { NAME = FILE }`."""

    description: str = Field(description="what it is, in the provider's words")
    required: bool = Field(True, description="whether the operator must give it")


class Promises(Table):
    """What the provider does with repeats, doubts and late messages."""

    key: Literal["heeded", "ignored", "rejects_repeats", "replaces_shown"] = Field(
        description="what the provider does with the idempotency key of a repeat"
    )
    settles_doubt: Literal["receipt", "lookup", "no"] = Field(
        description="how a doubt is settled: a receipt that echoes {message.key}, a lookup, or not at all"
    )
    receipts: bool = Field(description="whether the provider reports deliveries")
    validity: Positive | None = Field(None, description="longest validity, if the provider has one")
    validity_min: Positive | None = Field(None, description="shortest validity, if the provider has one")


class FactSource(Table):
    """Where a fact of the preset is documented."""

    fact: str = Field(description="the fact")
    source: str = Field(description="page and section of the provider's documentation")


class SandboxShape(Table):
    """An answer or a report of the sandbox; strings have placeholders such as {id}, {to} and {at.unix}."""

    status: int = Field(200, description="status of an answer")
    method: Literal["POST", "GET"] = Field("POST", description="method of a report")
    headers: dict[str, str] = Field({}, description="headers")
    query: dict[str, str] = Field({}, description="query of a report")
    replace: dict[str, str] = Field({}, description="texts in the address for reports, and what they become")
    json_body: Any = Field(None, alias="json", description="body as JSON")
    form: dict[str, str] | None = Field(None, description="body as a form")
    body: str = Field("", description="body as text")


class SandboxSignature(Table):
    """How the sandbox signs reports; the scheme has the rest."""

    scheme: Literal[
        "hmac",
        "twilio",
        "vonage",
        "jwt",
        "standard-webhooks",
        "mailgun",
        "ecdsa",
        "basic",
        "token",
        "sns",
        "google-rcs",
    ] = Field(description="how it signs")
    secret: str = Field(
        description="name of the secret; with token it ends the address for reports; with sns name of the key"
        " for the certificate's file"
    )
    header: str = Field("", description="header that carries the signature")
    username: str = Field("", description="user name of the scheme basic")
    algorithm: str = Field("sha256", description="hash of hmac")
    encoding: Literal["hex", "base64"] = Field("hex", description="how hmac is written")
    prefix: str = Field("", description="text before the signature")
    signed: str = Field("{body}", description="what hmac covers")
    headers: dict[str, str] = Field({}, description="further headers")
    claims: dict[str, Any] = Field({}, description="claims of jwt")
    topic: str = Field("", description="topic of sns")


class SandboxLookup(Table):
    """How the sandbox answers whether it has a message: a GET of one of the provider's addresses."""

    reference: str = Field(description="JSON Pointer to the reference in the query")
    found: SandboxShape = Field(description="answer if it has the message")
    missing: SandboxShape = Field(description="answer if it doesn't")


class PresetSandbox(Table):
    """How the sandbox plays the provider."""

    to: Pointer | Literal["path"] = Field(
        description='JSON Pointer to the recipient in a request; "path": it is in the address'
    )
    reference: str | None = Field(None, description="JSON Pointer to the reference")
    callback: str | None = Field(None, description="JSON Pointer to the address for reports")
    id: str = Field("{hex}", description="IDs, with {hex}, {number} or {reference}")
    key_header: str = Field("idempotency-key", description="header with the key, in lower case")
    accepted: SandboxShape = Field(description="answer that accepts")
    refused: SandboxShape = Field(description="answer that refuses")
    busy: SandboxShape | None = Field(None, description="left out: 503")
    stopped: SandboxShape | None = Field(None, description="the recipient opted out; left out: refused")
    repeated: SandboxShape | None = Field(None, description="the reference came before; left out: accepted")
    lookup: SandboxLookup | None = Field(None, description="left out: it can't be asked")
    account: SandboxShape = Field(
        SandboxShape.model_construct(json_body={}), description="answer to the probe; left out: 200 with {}"
    )
    delivered: SandboxShape | None = Field(None, description="left out: no reports")
    failed: SandboxShape | None = Field(None, description="left out: no reports of failures")
    signature: SandboxSignature | None = Field(None, description="left out: reports aren't signed")


def _members(value: object, name: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the members of this name of all tables within a value, with their paths."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            place = f"{path}.{key}" if path else str(key)
            if key == name:
                yield place, member
            yield from _members(member, name, place)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _members(member, name, f"{path}.{index}")


class PresetFile(Table):
    """A preset, as its file defines it. `{key.NAME}` in `table` and `blocks` are the operator's keys."""

    title: str = Field(description="the provider's name, as the provider writes it")
    channels: Annotated[list[Block], Field(min_length=1)] = Field(description="blocks that it can send")
    documentation: Annotated[str, Field(pattern=r"^https://")] = Field(description="the provider's own page")
    notes: list[str] = Field([], description="what an operator must know, one sentence each")
    promises: Promises = Field(description="what the provider does")
    keys: dict[KeyName, PresetKey] = Field({}, description="keys of the operator")
    any_of: list[Annotated[list[KeyName], Field(min_length=2)]] = Field(
        [], description="lists of keys of which at least one must be set"
    )
    secrets: dict[KeyName, PresetSecret] = Field({}, description="secrets of the operator")
    table: dict[str, Any] = Field(description="keys of the http adapter and of the provider")
    blocks: dict[str, dict[str, Any]] = Field({}, description="further keys of `table`, per block")
    sources: Annotated[list[FactSource], Field(min_length=1)] = Field(description="a source for each fact")
    sandbox: PresetSandbox | None = Field(None, description="how the sandbox plays the provider")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [*self._default_problems(), *self._need_problems()]
        problems += [*self._placeholder_problems(), *self._promise_problems()]
        problems += self._sandbox_problems(self.sandbox) if self.sandbox is not None else ()
        if "secrets" in self.table:
            problems.append("table.secrets: declare them in [secrets.NAME]; the operator gives the files")
        problems += [f"blocks.{name}: not in channels" for name in self.blocks if name not in self.channels]
        reserved = sorted(set(self.keys) & {"adapter", "secrets"})
        problems += [f"keys.{name}: the name is taken" for name in reserved]
        alternatives = {name for names in self.any_of for name in names}
        problems += [f"any_of: {name} isn't declared in keys" for name in alternatives - self.keys.keys()]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def keys_with_keys(self) -> frozenset[str]:
        """Return the keys whose default holds other keys."""
        return frozenset(name for name, key in self.keys.items() if KEY_USE.search(str(key.default)))

    def _default_problems(self) -> Iterator[str]:
        for name in sorted(self.keys_with_keys()):
            for used in KEY_USE.findall(str(self.keys[name].default)):
                if used not in self.keys:
                    yield f"keys.{name}.default: {{key.{used}}} isn't declared in keys"
                elif self.is_optional(used) or used in self.keys_with_keys():
                    yield f"keys.{name}.default: {{key.{used}}} must be required, or have a value as default"
        for name, key in self.keys.items():
            if key.only_with is not None and key.only_with not in self.keys:
                yield f"keys.{name}.only_with: {key.only_with} isn't declared in keys"

    def _need_problems(self) -> Iterator[str]:
        for place, needs in _members({"table": self.table, "blocks": self.blocks}, NEEDS):
            if not isinstance(needs, list) or not all(isinstance(each, str) for each in needs):
                yield f"{place}: must be a list of keys"
                continue
            yield from (f"{place}: {name} isn't declared in keys" for name in needs if name not in self.keys)

    def _placeholder_problems(self) -> Iterator[str]:
        tables = {"table": self.table, "blocks": self.blocks}
        used = {each for key in self.keys.values() for each in KEY_USE.findall(str(key.default))}
        for _, needs in _members(tables, NEEDS):
            used.update(map(str, needs) if isinstance(needs, list) else ())
        for place, text in texts_in(tables):
            for name in KEY_USE.findall(text):
                used.add(name)
                if name not in self.keys:
                    yield f"{place}: {{key.{name}}} isn't declared in keys"
                elif text != f"{{key.{name}}}" and self.is_optional(name):
                    yield (
                        f"{place}: {{key.{name}}} has no value where the operator sets none; "
                        f"set keys.{name}.required or keys.{name}.default"
                    )
            for name in SECRET_USE.findall(text):
                if name not in self.secrets:
                    yield f"{place}: {{secret.{name}}} isn't declared in secrets"
        for name in self.keys:
            if name not in used:
                yield f"keys.{name}: not used in table"

    def _promise_problems(self) -> Iterator[str]:
        unsettled = self.promises.key == "ignored" and self.promises.settles_doubt == "no"
        if unsettled and self.table.get("on_in_doubt") != "hold":
            yield 'table.on_in_doubt: must be "hold", since a doubt can\'t be settled at this provider'
        if self.promises.settles_doubt == "lookup" and "lookup" not in self.table:
            yield 'promises.settles_doubt = "lookup" needs table.lookup'
        if self.promises.settles_doubt == "receipt" and not all(map(self._echoes, self.channels)):
            yield (
                'promises.settles_doubt = "receipt" needs table.receipt.reference, '
                "and {message.key} in the request"
            )
        yield from self._receipt_problems(self.table.get("receipt"))

    def _receipt_problems(self, receipt: object) -> Iterator[str]:
        words = receipt if isinstance(receipt, Mapping) else {}
        has_words = not words.get("status") or bool(words.get("delivered"))
        if self.promises.receipts:
            if receipt is None:
                yield "promises.receipts needs table.receipt"
            elif not isinstance(receipt, Mapping) or receipt.keys() - ReceiptOptions.model_fields.keys():
                return  # reported with the table
            elif not has_words:
                yield "promises.receipts needs the words of table.receipt.delivered"
            return
        if self.promises.settles_doubt == "receipt":
            yield 'promises.settles_doubt = "receipt" needs promises.receipts = true'
        if has_words and (words.get("provider_id") or words.get("reference")):
            yield "promises.receipts is false, but there is [table.receipt] that reports deliveries"

    def _echoes(self, block: str) -> bool:
        """Whether receipts of this block have what the request sends, so that one settles a doubt."""
        table = {**self.table, **self.blocks.get(block, {})}
        receipt = table.get("receipt")
        request = {name: value for name, value in table.items() if name in _REQUEST}
        values = {name: key.default or key.example for name, key in self.keys.items()}
        sent = any(_ECHOED.search(text) for _, text in texts_in([request, values]))
        return sent and isinstance(receipt, Mapping) and bool(receipt.get("reference"))

    def _sandbox_problems(self, sandbox: PresetSandbox) -> Iterator[str]:
        shapes = sandbox.model_dump(by_alias=True, exclude={"signature"})
        for place, text in texts_in(shapes, "sandbox"):
            known = SANDBOX_ID_VALUES if place == "sandbox.id" else SANDBOX_VALUES
            for name in _SANDBOX_USE.findall(text):
                if name not in known:
                    yield f"{place}: unknown placeholder {{{name}}}{suggestion(name, known)}"
        signature = sandbox.signature
        if signature is not None:
            place, declared = ("keys", self.keys) if signature.scheme == "sns" else ("secrets", self.secrets)
            if signature.secret not in declared:
                yield f"sandbox.signature.secret: {signature.secret} isn't declared in {place}"
        table = {**self.table, **self.blocks.get(self.channels[0], {})}
        in_url = dict(parse_qsl(str(table.get("url")).partition("?")[2]))
        parts = (table.get("json"), table.get("form"), table.get("query"), in_url)
        if sandbox.to != "path" and all(follow(part, parse_pointer(sandbox.to)) is None for part in parts):
            yield f"sandbox.to: the request of the block {self.channels[0]} has no {sandbox.to}"

    def is_optional(self, name: str) -> bool:
        """Whether this key has no value unless the operator sets it."""
        key = self.keys[name]
        return not key.required and key.default is None
