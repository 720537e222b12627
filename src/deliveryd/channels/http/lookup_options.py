"""How a provider is asked whether it has a message in doubt: `[channels.NAME.lookup]`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from deliveryd.channels.http.address import address_problem
from deliveryd.channels.http.answer_options import (
    LONGEST_PAUSE,
    AnswerFinder,
    RowOptions,
    unreachable_rows,
)
from deliveryd.channels.mapping import Name, mapping_problems, names_in
from deliveryd.model import format_duration
from deliveryd.options.tables import Table
from deliveryd.options.units import Duration

PROVIDER_ID = Name("message", "providerId")
BY_NAME = frozenset({Name("message", "key"), Name("message", "id"), PROVIDER_ID})
"""The placeholders by which a provider can be asked."""


def _bounded(seconds: float) -> float:
    if seconds > LONGEST_PAUSE:
        raise ValueError(f"must be at most {format_duration(LONGEST_PAUSE)}")
    return seconds


class LookupAnswerOptions(RowOptions):
    """What an answer to the question means. The first row that fits counts; without one it is unknown."""

    verdict: Literal["taken", "not_taken", "unknown"] = Field(
        description="whether the provider has the message"
    )


class LookupOptions(Table):
    """A request by the message's key or id that shows whether the provider has the message.

    By {message.providerId}, only doubts can be settled in which the provider gave its id.
    """

    url: str = Field(
        description="address; {message.key}, {message.id} or {message.providerId} here, in query or in json"
    )
    method: Literal["GET", "POST"] = Field("GET", description="method of the request")
    query: dict[str, str] | None = Field(None, description="parameters added to the address")
    json_body: dict[str, Any] | None = Field(None, alias="json", description="body as JSON")
    headers: dict[str, str] = Field({}, description="headers added to the adapter's own")
    after: Annotated[Duration, AfterValidator(_bounded)] = Field(
        60.0, description="least time after the doubt, since listings lag"
    )
    answers: Annotated[list[LookupAnswerOptions], Field(min_length=1)] = Field(
        description="what answers mean"
    )
    provider_id: AnswerFinder | None = Field(None, description="the provider's id of the message")

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

    @field_validator("answers")
    @classmethod
    def _table(cls, answers: list[LookupAnswerOptions]) -> list[LookupAnswerOptions]:
        problems = list(unreachable_rows(answers))
        if problems:
            raise ValueError("; ".join(problems))
        return answers

    @model_validator(mode="after")
    def _asks_by_name(self) -> Self:
        if self.method == "GET" and self.json_body is not None:
            raise ValueError('method = "GET" needs query instead of json')
        if not any(name in BY_NAME for _, name in names_in(self.mapped())):
            raise ValueError(
                "a provider is asked by {message.key}, {message.id} or {message.providerId}:"
                " put one into the request"
            )
        return self

    def mapped(self) -> dict[str, object]:
        """Return everything that is filled in per message, by configuration key."""
        return {"url": self.url, "query": self.query, "json": self.json_body, "headers": self.headers}

    @property
    def asks_by_provider_id(self) -> bool:
        """Whether the provider's own id is needed."""
        return any(name == PROVIDER_ID for _, name in names_in(self.mapped()))

    def problems(self, secrets: Mapping[str, object]) -> Iterator[str]:
        """Yield the problems of the placeholders."""
        yield from mapping_problems(self.mapped(), secrets)
        for place, name in names_in(self.mapped()):
            if name.root in ("settings", "customer", "content"):
                yield f"{place}: a doubt is settled without {{{name.root}.{name.field}}}"
