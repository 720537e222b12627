"""What a provider reports, and how: `[channels.NAME.receipt]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import with_info_plain_validator_function

from deliveryd.channels.signature_options import HmacSignature, NamedSecret, Secrets, Signature
from deliveryd.http.expressions import compile_expression
from deliveryd.http.finder import HEADER, QUERY, ConditionOptions, compile_finder
from deliveryd.http.json_pointer import parse_pointer
from deliveryd.options.tables import Table
from deliveryd.options.units import Pointer, SecretPaths, Size, Word

IntermediateStatus = Literal["sending", "accepted"]
ISO, UNIX, UNIX_MS = "iso", "unix", "unix_ms"
"""Formats of times besides patterns of strptime."""


def _place(expression: str) -> str:
    if expression.startswith((HEADER, QUERY)):
        compile_finder(expression)
    else:
        parse_pointer(expression)
    return expression


def _expression(text: str) -> str:
    compile_expression(text)
    return text


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f'there is no time zone {name}; write one such as "Europe/London"') from None
    return name


def _time_format(text: str) -> str:
    if text not in (ISO, UNIX, UNIX_MS) and "%" not in text:
        raise ValueError('expected "iso", "unix", "unix_ms", or a pattern such as "%Y-%m-%d %H:%M"')
    return text


Place = Annotated[str, AfterValidator(_place)]
"""Where a value stands in a report: a JSON Pointer, a header or a parameter of the query."""

Places = Annotated[
    tuple[Place, ...],
    BeforeValidator(_several),
    PlainSerializer(lambda places: places[0] if len(places) == 1 else list(places)),
]
"""One place, or several of which the first that has a value counts."""


class _ByScheme:
    """Validates with the model that `scheme` names; without one it is that of `hmac`."""

    def __get_pydantic_core_schema__(self, _annotated: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return with_info_plain_validator_function(_read)


def _read(value: Any, info: ValidationInfo) -> Signature:
    return _model_of(value).model_validate(value, context=info.context)


def _model_of(value: Any) -> type[Signature]:
    if isinstance(value, Signature):
        return type(value)
    scheme = value.get("scheme", "hmac") if isinstance(value, dict) else "hmac"
    if scheme == "hmac":
        return HmacSignature
    from deliveryd.channels.signature_schemes import SCHEMES  # noqa: PLC0415  # rarely used

    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise PydanticCustomError("unknown_scheme", f"unknown scheme; use one of {', '.join(SCHEMES)}")
    return SCHEMES[scheme]


SignatureOptions = Annotated[HmacSignature | Signature, _ByScheme()]
"""The options of a signature, by `scheme`."""


class ReceiptAnswerOptions(Table):
    """What the provider gets for a request that was read."""

    status: int = Field(200, ge=200, le=299, description="status")
    body: str = Field("", description="body")
    content_type: str = Field("text/plain; charset=utf-8", description="its Content-Type")


class ChallengeOptions(NamedSecret):
    """Meta's verification of an address: a GET with a token that the operator chose, and a text to return."""

    secret_file: SecretPaths = Field((), description="verify token; during a rotation several, all valid")


class ReceiptOptions(Table):
    """Where the values of a report are, and what its words mean.

    With `reference` a receipt also settles a message whose acceptance, and so the provider's id, is unknown.
    """

    largest_request: Size | None = Field(
        None, ge=1, description="largest request of the provider; receipts.max_body, if that is larger"
    )
    each: Pointer | None = Field(None, description="list of reports; left out: a request is one report")
    ignore: list[ConditionOptions] = Field(
        [], description="requests or items that are no report, if one of these holds"
    )
    provider_id: Places = Field((), description="the provider's id of the message; several: the first found")
    provider_id_part: Annotated[str, AfterValidator(_expression)] | None = Field(
        None, description="regular expression for the part of it that the answer has; left out: all of it"
    )
    reference: Places = Field((), description="the echoed {message.key} or {message.id}")
    status: Places = Field((), description="the status; left out: every report means delivered")
    code: Places = Field((), description='second word; "2/5" in a list is a status and a code')
    delivered: list[Word] = Field(
        [], description="words that mean delivered; needed with status; []: only failures are reported"
    )
    failed: list[Word] = Field([], description="words that mean failed; words of no list change nothing")
    intermediate: Mapping[IntermediateStatus, list[Word]] = Field(
        {}, description="words for the statuses sending and accepted; a pair here excepts a code of failed"
    )
    stopped: list[Word] = Field([], description="words that mean: nothing more to this recipient")
    resumed: list[Word] = Field([], description="words that mean: the recipient may be sent to again")
    recipient: Places = Field((), description="the recipient's address, for stopped and resumed")
    reported_at: Places = Field(
        (), description="the time; several: the first found; none: when the report came"
    )
    time: Annotated[str, AfterValidator(_time_format)] = Field(
        ISO, description='how it is written: "iso", "unix", "unix_ms", or a pattern of strptime'
    )
    zone: Annotated[str, AfterValidator(_zone)] | None = Field(
        None, description="time zone of times without an offset; left out: UTC"
    )
    answer: ReceiptAnswerOptions = Field(
        ReceiptAnswerOptions.model_construct(), description="what the provider gets"
    )
    signature: SignatureOptions | None = Field(None, description="left out: reports aren't verified")
    challenge: ChallengeOptions | None = Field(None, description="Meta's verification of the address")

    @field_validator("each")
    @classmethod
    def _a_list(cls, each: str | None) -> str | None:
        if each == "/":
            raise ValueError('no list is there; "/*" is a body that is the list itself')
        return each

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        groups: dict[str, list[str]] = {"delivered": self.delivered, "failed": self.failed}
        groups |= {f"intermediate.{status}": words for status, words in self.intermediate.items()}
        for problem in (*_overlaps(groups), *_overlaps({"stopped": self.stopped, "resumed": self.resumed})):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _finds_what_it_needs(self) -> Self:
        if not self.is_about_messages and not (self.stopped or self.resumed):
            raise ValueError("needs provider_id or reference, to find the message")
        if self.status and not any((self.delivered, self.failed, self.stopped, self.resumed)):
            raise ValueError("status needs words: delivered, failed, stopped or resumed")
        if self.status and self.is_about_messages and "delivered" not in self.model_fields_set:
            raise ValueError(
                "status needs delivered, the words that mean delivered;"
                " write delivered = [] if the provider reports failures only"
            )
        if not self.status and any((self.failed, self.intermediate, self.stopped, self.resumed, self.code)):
            raise ValueError("words need status")
        if self.provider_id_part is not None and not self.provider_id:
            raise ValueError("provider_id_part needs provider_id")
        if (self.stopped or self.resumed) and not self.recipient:
            raise ValueError("stopped and resumed need recipient")
        if self.zone is not None and not self.reported_at:
            raise ValueError("zone needs reported_at")
        return self

    @model_validator(mode="after")
    def _reads_what_is_signed(self) -> Self:
        if self.signature is None:
            return self
        for key in ("provider_id", "reference", "status", "code", "recipient", "reported_at"):
            places = getattr(self, key) or ()
            for place in (places,) if isinstance(places, str) else places:
                if not self.signature.signs(place):
                    raise ValueError(f"{key}: the signature doesn't cover {place}")
        return self

    def with_secrets(self, secrets: Secrets) -> Self:
        """Return the options with the files of the secrets that they name. Raises ValueError."""
        changed = {}
        for key in ("signature", "challenge"):
            table: NamedSecret | None = getattr(self, key)
            if table is not None and table.secret is not None:
                try:
                    changed[key] = table.with_secrets(secrets)
                except ValueError as error:
                    raise ValueError(f"{key}.{error}") from None
        return self.model_copy(update=changed) if changed else self

    @property
    def is_about_messages(self) -> bool:
        """Whether reports name messages; others only report who may be sent to."""
        return bool(self.provider_id or self.reference)

    @property
    def confirms(self) -> bool:
        """Whether deliveries are reported; else a message without a report may have been delivered."""
        return self.is_about_messages and (not self.status or bool(self.delivered))

    def largest(self, usual: int) -> int:
        """Return the bytes of the largest request that is read; `usual` is the limit for all providers."""
        return max(usual, self.largest_request or 0)

    @property
    def problems(self) -> list[str]:
        """Return the problems with the files of its own secrets, as `key: what`."""
        signature, problems = self.signature, []
        if signature is not None:
            key = "secret_file" if signature.secret is None else "secret"
            problems += [f"signature.{key}: {problem}" for problem in signature.problems]
        if self.challenge is not None and self.challenge.secret is None:
            files = self.challenge.secret_file
            problems += [f"challenge.secret_file: {text}" for file in files if (text := file.problem())]
        return problems


def _overlaps(groups: Mapping[str, list[Any]]) -> Iterator[str]:
    names = list(groups)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            if both := sorted(set(groups[first]) & set(groups[second])):
                yield f"in both {first} and {second}: {', '.join(both)}"
