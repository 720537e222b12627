"""The options of the http adapter, and their validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deliveryd.channels.http.answer_options import AnswerFinder, AnswerOptions, answer_problems
from deliveryd.channels.http.ask_options import AskOptions, LookupOptions, ProbeOptions
from deliveryd.channels.http.request_options import RequestOptions
from deliveryd.channels.mapping import content_problems, names_in
from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.errors import how_to_install
from deliveryd.network.address import SECURE_ADDRESS, goes_out_plain, plain_text_problem
from deliveryd.options.connections import ProxyOptions, TlsOptions, tls_problems
from deliveryd.options.tables import OnUse, Table, raise_all
from deliveryd.options.units import Size


class LimitOptions(Table):
    """The length of one field; a longer one is refused by the provider."""

    field: str = Field(min_length=1, description="field of the block, such as text or button.text")
    characters: StrictInt = Field(ge=1, description="most characters")
    ucs2: StrictInt | None = Field(None, ge=1, description="most characters of an SMS in UCS-2")
    beside: str | None = Field(None, description="only if the block also has this field, such as image")


_NO_ADDRESSES = frozenset({"name", "language"})
"""Customer fields that are never an address."""


def _address_in(mapped: object) -> str | None:
    """Return the placeholder of the address: the only customer field of the mappings, else None."""
    found: dict[str, str] = {}
    for _, name in names_in(mapped):
        if name.root == "customer" and name.field not in _NO_ADDRESSES:
            found.setdefault(name.field, name.written)
    return next(iter(found.values())) if len(found) == 1 else None


SECRET_HEADERS = frozenset({"authorization", "cookie", "api-key", "x-api-key", "x-auth-token"})
"""Headers whose value is always a secret."""


class HttpChannelOptions(ProxyOptions, RequestOptions):
    """The keys of an HTTP gateway; "Add a channel" lists the placeholders of its mappings."""

    provider_id: AnswerFinder | None = Field(
        None,
        description="the provider's id in its answer: JSON Pointer, header:NAME, or a regular expression",
    )
    recipient: str | None = Field(
        None,
        description="the recipient's address, as {customer.phone}; left out: the only customer field sent",
    )
    devices: StrictBool = Field(
        False, description="the recipient's field may hold a list: one request for each member"
    )
    http2: StrictBool = Field(
        False, description="HTTP/2: many requests at a time on one connection (extra apns)"
    )
    largest_body: Size | None = Field(
        None, description="largest body that the provider takes; a larger one is refused before it is sent"
    )
    answers: list[OnUse[AnswerOptions]] = Field(
        [], description="what answers mean; left out: by their statuses"
    )
    lookup: OnUse[LookupOptions] | None = Field(
        None, description="how to ask whether the provider has a message in doubt; left out: it isn't asked"
    )
    receipt: OnUse[ReceiptOptions] | None = Field(None, description="how to read receipts; left out: none")
    probe: OnUse[ProbeOptions] | None = Field(
        None, description="how deliveryd check asks about the account; left out: it only connects"
    )
    limits: list[OnUse[LimitOptions]] = Field([], description="how long texts may be, for deliveryd lint")
    tls: OnUse[TlsOptions] | None = Field(None, description="certificates")

    @field_validator("receipt")
    @classmethod
    def _named_secrets(cls, receipt: ReceiptOptions | None, info: ValidationInfo) -> ReceiptOptions | None:
        secrets = info.data.get("secrets")
        return receipt if receipt is None or secrets is None else receipt.with_secrets(secrets)

    @field_validator("lookup", "probe")
    @classmethod
    def _usable_question(cls, table: AskOptions | None, info: ValidationInfo) -> AskOptions | None:
        if table is not None and (secrets := info.data.get("secrets")) is not None:
            raise_all(table.problems(secrets))
        return table

    @field_validator("answers")
    @classmethod
    def _table(cls, answers: list[AnswerOptions]) -> list[AnswerOptions]:
        raise_all(answer_problems(answers))
        return answers

    @model_validator(mode="after")
    def _matches_receipts(self) -> Self:
        matches_by_id = self.receipt is not None and not self.receipt.reference
        if matches_by_id and self.provider_id is None:
            raise ValueError("receipt needs provider_id, since receipts are matched by the provider's id")
        return self

    @model_validator(mode="after")
    def _asks_by_a_known_id(self) -> Self:
        if self.lookup is not None and self.lookup.asks_by_provider_id and self.provider_id is None:
            raise ValueError("lookup uses {message.providerId}: set provider_id to its place in the answer")
        return self

    @model_validator(mode="after")
    def _authenticates_once(self) -> Self:
        """Check that no request has a header that `auth` sets as well."""
        own = self.auth.header_names
        sent = [("headers", name) for parts in self.all_parts() for name in parts.headers]
        for place, table in (("lookup", self.lookup), ("probe", self.probe)):
            sent += [(f"{place}.headers", name) for name in (table.headers if table is not None else ())]
        for place, name in sent:
            if name.lower() in own:
                raise ValueError(f"{place}.{name}: auth sets this header; remove one of them")
        if self.probe is not None and self.probe.basic is not None and "authorization" in own:
            raise ValueError("probe.basic: auth sets the header Authorization; remove one of them")
        return self

    @field_validator("recipient")
    @classmethod
    def _one_customer_field(cls, recipient: str) -> str:
        if _address_in(recipient) != recipient:
            raise ValueError("expected one placeholder such as {customer.phone}")
        return recipient

    @model_validator(mode="after")
    def _knows_its_recipients(self) -> Self:
        if self.address() is None and any(row.verdict == "stopped" for row in self.answers):
            raise ValueError(
                'the verdict "stopped" needs the address that is stopped: set recipient = "{customer.FIELD}"'
            )
        return self

    @model_validator(mode="after")
    def _knows_its_devices(self) -> Self:
        if self.devices and self.address() is None:
            raise ValueError('devices needs the field with the list: set recipient = "{customer.FIELD}"')
        for name in ("lookup", "receipt"):
            if self.devices and getattr(self, name) is not None:
                raise ValueError(f"devices: a message for several devices has no {name}; remove one of them")
        return self

    @model_validator(mode="after")
    def _speaks_http2(self) -> Self:
        if self.http2 and self.proxy is not None:
            raise ValueError("http2: there is no way through a proxy; remove proxy")
        if self.http2 and find_spec("h2") is None:
            raise ValueError("http2 needs a package that isn't installed" + how_to_install("apns"))
        return self

    @property
    def devices_field(self) -> str | None:
        """Return the customer's field that may hold a list of devices; None: none does."""
        address = self.address() if self.devices else None
        return None if address is None else next(name.field for _, name in names_in(address))

    def address(self) -> str | None:
        """Return the placeholder of the recipient's address, if it is known."""
        return self.recipient or _address_in(self.mapped())

    def problems(self, block: str) -> list[str]:
        """Return the problems with its block and its files, as `key: what`."""
        found = content_problems(self.mapped(), block)
        if self.mail is not None and block != "email":
            found.append(f"mail: the block {block} isn't an e-mail; remove mail and {{message.mime}}")
        for name, files in self.secrets.items():
            found += [f"secrets.{name}: {problem}" for file in files if (problem := file.problem())]
        if self.receipt is not None:
            found += [f"receipt.{problem}" for problem in self.receipt.problems]
        found += [f"auth.{problem}" for problem in self.auth.problems()]
        found += self.proxy_problems()
        if not self.allow_plain_text:
            found += self._plain_text_problems()
        return found + tls_problems("tls", self.tls.files() if self.tls else None)

    def _plain_text_problems(self) -> Iterator[str]:
        """Yield the requests that carry a secret over plain HTTP."""
        headers = [name for parts in self.all_parts() for name in parts.headers]
        urls = sorted({parts.url for parts in self.all_parts()})
        requests = [("url", url, self.mapped(), headers) for url in urls]
        if self.lookup is not None:
            requests.append(("lookup.url", self.lookup.url, self.lookup.mapped(), [*self.lookup.headers]))
        if self.probe is not None:
            mapped = {**self.probe.mapped(), "channel": self.basic and self.basic.mapped()}
            requests.append(("probe.url", self.probe.url, mapped, [*self.probe.headers]))
        for key, url, mapped, names in requests:
            sent = _secret_in(mapped, names) or ("the secret of auth" if self.auth.is_given else None)
            if sent and goes_out_plain(url, self.proxy):
                yield f"{key}: {plain_text_problem(sent, urlsplit(url).netloc, SECURE_ADDRESS)}"


def _secret_in(mapped: Mapping[str, object], headers: Sequence[str]) -> str | None:
    """Return a secret that a request carries: one from a file, or a header for secrets."""
    for _, name in names_in(mapped):
        if name.root == "secret":
            return f"the secret {name.field}"
    return next((f"the header {name}" for name in headers if name.lower() in SECRET_HEADERS), None)
