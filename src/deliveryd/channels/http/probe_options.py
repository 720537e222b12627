"""How `deliveryd check` asks a provider about the account: `[channels.NAME.probe]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from deliveryd.channels.http.address import address_problem
from deliveryd.channels.http.answer_options import RowOptions, unreachable_rows
from deliveryd.channels.http.request_options import BasicOptions
from deliveryd.channels.mapping import mapping_problems, names_in
from deliveryd.options.tables import Table


class ProbeAnswerOptions(RowOptions):
    """What an answer means. The first row that fits counts; then the status.

    2xx is good, 401, 403 and 404 are rejected.
    """

    verdict: Literal["good", "rejected"] = Field(description="whether messages can be sent with the account")
    says: str | None = Field(None, description="what it means, for people")


class ProbeOptions(Table):
    """A request that sends no message and shows whether address, account and credentials are right."""

    url: str = Field(description="address; {secret.NAME} here, in query, in json and in headers")
    method: Literal["GET", "POST"] = Field("GET", description="method of the request")
    query: dict[str, str] | None = Field(None, description="parameters added to the address")
    json_body: dict[str, Any] | None = Field(None, alias="json", description="body as JSON")
    headers: dict[str, str] = Field({}, description="headers added to the adapter's own")
    basic: BasicOptions | None = Field(None, description="Basic authentication; left out: the channel's")
    answers: list[ProbeAnswerOptions] = Field(
        [], description="what answers mean; left out: by their statuses"
    )

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        problem = address_problem(url)
        if problem:
            raise ValueError(problem)
        return url

    @field_validator("answers")
    @classmethod
    def _table(cls, answers: list[ProbeAnswerOptions]) -> list[ProbeAnswerOptions]:
        problems = list(unreachable_rows(answers))
        if problems:
            raise ValueError("; ".join(problems))
        return answers

    def mapped(self) -> dict[str, object]:
        """Return everything that may hold placeholders, by configuration key."""
        basic = self.basic and {"username": self.basic.username, "password": self.basic.password}
        return {
            "url": self.url,
            "query": self.query,
            "json": self.json_body,
            "headers": self.headers,
            "basic": basic,
        }

    def problems(self, secrets: Mapping[str, object]) -> Iterator[str]:
        """Yield the problems of the placeholders."""
        yield from mapping_problems(self.mapped(), secrets)
        for place, name in names_in(self.mapped()):
            if name.root != "secret":
                yield f"{place}: there is no message, so only {{secret.NAME}} has a value"
