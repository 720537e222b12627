"""The options of the http adapter, and their validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deliveryd.channels.http.answer_options import AnswerFinder, AnswerOptions, answer_problems
from deliveryd.channels.http.lookup_options import LookupOptions
from deliveryd.channels.http.probe_options import ProbeOptions
from deliveryd.channels.http.recipient import address_in
from deliveryd.channels.http.request_options import RequestOptions, header_problems
from deliveryd.channels.mapping import content_problems, names_in
from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.network.address import SECURE_ADDRESS, goes_out_plain, plain_text_problem
from deliveryd.options.on_use import OnUse
from deliveryd.options.proxy import ProxyOptions
from deliveryd.options.tls import TlsOptions, tls_problems


class LimitOptions(BaseModel):
    """The length of one field; a longer one is refused by the provider."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    field: str = Field(min_length=1, description="field of the block, such as text or button.text")
    characters: StrictInt = Field(ge=1, description="most characters")
    ucs2: StrictInt | None = Field(None, ge=1, description="most characters of an SMS in UCS-2")
    beside: str | None = Field(None, description="only if the block also has this field, such as image")


SECRET_HEADERS = frozenset({"authorization", "cookie", "api-key", "x-api-key", "x-auth-token"})
"""Headers whose value is always a secret."""


class HttpChannelOptions(ProxyOptions, RequestOptions):
    """The keys of an HTTP gateway; "Add a channel" lists the placeholders of its mappings."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    provider_id: AnswerFinder | None = Field(
        None,
        description="the provider's id in its answer: JSON Pointer, header:NAME, or a regular expression",
    )
    recipient: str | None = Field(
        None,
        description="the recipient's address, as {customer.phone}; left out: the only customer field sent",
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

    @field_validator("lookup")
    @classmethod
    def _known_in_lookup(cls, lookup: LookupOptions, info: ValidationInfo) -> LookupOptions:
        problems = [*lookup.problems(info.data.get("secrets", {})), *header_problems(lookup.headers)]
        if problems:
            raise ValueError("; ".join(problems))
        return lookup

    @field_validator("probe")
    @classmethod
    def _known_in_probe(cls, probe: ProbeOptions, info: ValidationInfo) -> ProbeOptions:
        problems = [*probe.problems(info.data.get("secrets", {})), *header_problems(probe.headers)]
        if problems:
            raise ValueError("; ".join(problems))
        return probe

    @field_validator("answers")
    @classmethod
    def _table(cls, answers: list[AnswerOptions]) -> list[AnswerOptions]:
        problems = list(answer_problems(answers))
        if problems:
            raise ValueError("; ".join(problems))
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
            raise ValueError("lookup asks by {message.providerId}, so provider_id has to say where it stands")
        return self

    @field_validator("recipient")
    @classmethod
    def _one_customer_field(cls, recipient: str) -> str:
        if address_in(recipient) != recipient:
            raise ValueError("expected one placeholder such as {customer.phone}")
        return recipient

    @model_validator(mode="after")
    def _knows_its_recipients(self) -> Self:
        if self.address() is None and any(row.verdict == "stopped" for row in self.answers):
            raise ValueError(
                'the verdict "stopped" needs the address that is stopped: set recipient = "{customer.FIELD}"'
            )
        return self

    def address(self) -> str | None:
        """Return the placeholder of the recipient's address, if it is known."""
        return self.recipient or address_in(self.mapped())

    def problems(self, block: str) -> list[str]:
        """Return the problems with its block and its files, as `key: what`."""
        found = content_problems(self.mapped(), block)
        for name, files in self.secrets.items():
            found += [f"secrets.{name}: {problem}" for file in files if (problem := file.problem())]
        if self.receipt is not None:
            found += [f"receipt.{problem}" for problem in self.receipt.problems]
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
            mapped = {**self.probe.mapped(), "channel": self.mapped()["basic"]}
            requests.append(("probe.url", self.probe.url, mapped, [*self.probe.headers]))
        for key, url, mapped, names in requests:
            if goes_out_plain(url, self.proxy) and (sent := _secret_in(mapped, names)):
                yield f"{key}: {plain_text_problem(sent, urlsplit(url).netloc, SECURE_ADDRESS)}"


def _secret_in(mapped: Mapping[str, object], headers: Sequence[str]) -> str | None:
    """Return a secret that a request carries: one from a file, or a header for secrets."""
    for _, name in names_in(mapped):
        if name.root == "secret":
            return f"the secret {name.field}"
    return next((f"the header {name}" for name in headers if name.lower() in SECRET_HEADERS), None)
