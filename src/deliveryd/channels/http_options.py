"""The options of the http adapter, and their validation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
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
from deliveryd.channels.mapping import content_problems, mapping_problems, names_in
from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.http.finder import FinderText
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


class SuccessOptions(BaseModel):
    """What a 2xx answer must say to mean acceptance, for gateways that answer 200 to everything.

    Values are compared as text. No value at all is in doubt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    pointer: FinderText = Field(description="where the answer says it: JSON Pointer, or a regular expression")
    equals: Annotated[list[str], Field(min_length=1)] = Field(description="values that mean accepted")
    try_again: list[str] = Field([], description="values that mean try again; any other is a refusal")

    @field_validator("equals", "try_again", mode="before")
    @classmethod
    def _texts(cls, values: Any) -> Any:
        return [_as_text(value) for value in values] if isinstance(values, list) else values


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


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
    provider_id: FinderText | None = Field(
        None, description="the provider's id in its answer: JSON Pointer, or a regular expression"
    )
    success: SuccessOptions | None = Field(None, description="left out: every 2xx means accepted")
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

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, str]) -> dict[str, str]:
        problems = header_problems(headers)
        if problems:
            raise ValueError("; ".join(problems))
        return headers

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
        is_plain = goes_out_plain(self.url, self.proxy)
        if not self.allow_plain_text and is_plain and (sent := self._secret_sent()):
            host = urlsplit(self.url).netloc
            found.append(f"url: {plain_text_problem(sent, host, SECURE_ADDRESS)}")
        return found + tls_problems("tls", self.tls.files() if self.tls else None)

    def _secret_sent(self) -> str | None:
        """Return a secret that requests carry: one from a file, or a header for secrets."""
        for _, name in names_in(self.mapped()):
            if name.root == "secret":
                return f"the secret {name.field}"
        return next((f"the header {name}" for name in self.headers if name.lower() in SECRET_HEADERS), None)


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
