"""The options of the http adapter, and their validation."""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

from pydantic import (
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deliveryd.channels.http_answer_options import AnswerFinder, AnswerOptions, answer_problems
from deliveryd.channels.mapping import content_problems, names_in
from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.channels.request_options import RequestOptions
from deliveryd.network.plain_text import SECURE_ADDRESS, goes_out_plain, plain_text_problem
from deliveryd.options.proxy import ProxyOptions
from deliveryd.options.tls import TlsOptions, tls_problems

SECRET_HEADERS = frozenset({"authorization", "cookie", "api-key", "x-api-key", "x-auth-token"})
"""Headers whose value is always a secret."""


class HttpChannelOptions(ProxyOptions, RequestOptions):
    """The keys of an HTTP gateway; "Add a channel" lists the placeholders of its mappings."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    provider_id: AnswerFinder | None = Field(
        None,
        description="the provider's id in its answer: JSON Pointer, header:NAME, or a regular expression",
    )
    answers: list[AnswerOptions] = Field([], description="what answers mean; left out: by their statuses")
    receipt: ReceiptOptions | None = Field(None, description="how to read receipts; left out: none")
    tls: TlsOptions | None = Field(None, description="certificates")

    @field_validator("receipt")
    @classmethod
    def _named_secrets(cls, receipt: ReceiptOptions | None, info: ValidationInfo) -> ReceiptOptions | None:
        secrets = info.data.get("secrets")
        return receipt if receipt is None or secrets is None else receipt.with_secrets(secrets)

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

    def problems(self, block: str) -> list[str]:
        """Return the problems with its block and its files, as `key: what`."""
        found = content_problems(self.mapped(), block)
        for name, files in self.secrets.items():
            found += [f"secrets.{name}: {problem}" for file in files if (problem := file.problem())]
        if self.receipt is not None:
            found += [f"receipt.{problem}" for problem in self.receipt.problems]
        found += self.proxy_problems()
        if not self.allow_plain_text and (sent := self._secret_sent()):
            found += [
                f"url: {plain_text_problem(sent, urlsplit(url).netloc, SECURE_ADDRESS)}"
                for url in sorted({parts.url for parts in self.all_parts()})
                if goes_out_plain(url, self.proxy)
            ]
        return found + tls_problems("tls", self.tls.files() if self.tls else None)

    def _secret_sent(self) -> str | None:
        """Return a secret that requests carry: one from a file, or a header for secrets."""
        for _, name in names_in(self.mapped()):
            if name.root == "secret":
                return f"the secret {name.field}"
        names = (name for parts in self.all_parts() for name in parts.headers)
        return next((f"the header {name}" for name in names if name.lower() in SECRET_HEADERS), None)
