"""The options of the http adapter, and their validation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deliveryd.channels.http_address import address_problem
from deliveryd.channels.http_answer_options import AnswerFinder, AnswerOptions, answer_problems
from deliveryd.channels.http_lookup_options import LookupOptions
from deliveryd.channels.http_recipient import address_in
from deliveryd.channels.mapping import content_problems, mapping_problems, names_in
from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.network.plain_text import SECURE_ADDRESS, goes_out_plain, plain_text_problem
from deliveryd.options.proxy import ProxyOptions
from deliveryd.options.tls import TlsOptions, tls_problems
from deliveryd.options.units import SecretPaths

Scalar = StrictStr | StrictBool | StrictInt | StrictFloat
MappedPairs = dict[str, Scalar | list[Scalar]]

OWN_HTTP_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "idempotency-key"}
    | {"expect", "upgrade", "te", "trailer", "keep-alive", "proxy-authorization", "proxy-connection"}
)
SECRET_HEADERS = frozenset({"authorization", "cookie", "api-key", "x-api-key", "x-auth-token"})
"""Headers whose value is always a secret."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class HttpChannelOptions(ProxyOptions):
    """The keys of an HTTP gateway; "Add a channel" lists the placeholders of its mappings."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    # First, since the validators of the others refer to it.
    secrets: dict[Annotated[str, Field(pattern=r"^[^{}]+$")], SecretPaths] = Field(
        {}, description="names for {secret.NAME}, and their files"
    )
    url: str = Field(description="address; placeholders in path segments and values of the query")
    method: Literal["POST", "PUT", "GET"] = Field("POST", description="method of the request")
    json_body: dict[str, Any] | list[Any] | None = Field(None, alias="json", description="body as JSON")
    form: MappedPairs | None = Field(None, description="body as a form, instead of json")
    query: MappedPairs | None = Field(None, description="parameters added to the address")
    headers: dict[str, str] = Field({}, description="headers added to the adapter's own")
    provider_id: AnswerFinder | None = Field(
        None,
        description="the provider's id in its answer: JSON Pointer, header:NAME, or a regular expression",
    )
    recipient: str | None = Field(
        None,
        description="the recipient's address, as {customer.phone}; left out: the only customer field sent",
    )
    answers: list[AnswerOptions] = Field([], description="what answers mean; left out: by their statuses")
    lookup: LookupOptions | None = Field(
        None, description="how to ask whether the provider has a message in doubt; left out: it isn't asked"
    )
    receipt: ReceiptOptions | None = Field(None, description="how to read receipts; left out: none")
    tls: TlsOptions | None = Field(None, description="certificates")

    @field_validator("url", "json_body", "form", "query", "headers")
    @classmethod
    def _known_placeholders(cls, value: Any, info: ValidationInfo) -> Any:
        secrets = info.data.get("secrets")
        problems = [] if secrets is None else mapping_problems(value, secrets)
        if problems:
            raise ValueError("; ".join(problems))
        return value

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        problem = address_problem(url)
        if problem:
            raise ValueError(problem)
        return url

    @field_validator("json_body")
    @classmethod
    def _writable_as_json(cls, value: Any) -> Any:
        try:
            json.dumps(value, allow_nan=False)
        except TypeError:
            raise ValueError("a date or time must be a string in quotes") from None
        return value

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

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, str]) -> dict[str, str]:
        problems = header_problems(headers)
        if problems:
            raise ValueError("; ".join(problems))
        return headers

    @field_validator("answers")
    @classmethod
    def _table(cls, answers: list[AnswerOptions]) -> list[AnswerOptions]:
        problems = list(answer_problems(answers))
        if problems:
            raise ValueError("; ".join(problems))
        return answers

    @model_validator(mode="after")
    def _carries_the_message(self) -> Self:
        if self.json_body is not None and self.form is not None:
            raise ValueError("json and form can't be combined: a request has one body")
        if self.method == "GET" and (self.json_body is not None or self.form is not None):
            raise ValueError('method = "GET" needs query instead of json or form')
        if self.json_body is None and self.form is None and not any(names_in([self.url, self.query])):
            raise ValueError("the request wouldn't contain the message: set json, form or query")
        matches_by_id = self.receipt is not None and not self.receipt.reference
        if matches_by_id and self.provider_id is None:
            raise ValueError("receipt needs provider_id, since receipts are matched by the provider's id")
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

    def mapped(self) -> dict[str, object]:
        """Return everything that is filled in per message, by configuration key."""
        return {
            "url": self.url,
            "json": self.json_body,
            "form": self.form,
            "query": self.query,
            "headers": self.headers,
        }

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
        requests = [("url", self.url, self.mapped(), self.headers)]
        if self.lookup is not None:
            requests.append(("lookup.url", self.lookup.url, self.lookup.mapped(), self.lookup.headers))
        for key, url, mapped, headers in requests:
            if goes_out_plain(url, self.proxy) and (sent := _secret_in(mapped, headers)):
                yield f"{key}: {plain_text_problem(sent, urlsplit(url).netloc, SECURE_ADDRESS)}"


def _secret_in(mapped: Mapping[str, object], headers: Mapping[str, str]) -> str | None:
    """Return a secret that a request carries: one from a file, or a header for secrets."""
    for _, name in names_in(mapped):
        if name.root == "secret":
            return f"the secret {name.field}"
    return next((f"the header {name}" for name in headers if name.lower() in SECRET_HEADERS), None)


def header_problems(headers: Mapping[str, str]) -> list[str]:
    """Return header names that are invalid or reserved, and values with control characters."""
    problems = []
    seen = set()
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            problems.append(f"{name!r} isn't a header name")
        elif name.lower() in OWN_HTTP_HEADERS:
            problems.append(f"{name} is set by the adapter")
        elif name.lower() in seen:
            problems.append(f"{name} is given twice")
        elif not (value.isascii() and value.isprintable()):
            problems.append(f"{name}: a header value must be printable ASCII")
        seen.add(name.lower())
    return problems
