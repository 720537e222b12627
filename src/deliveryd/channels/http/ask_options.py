"""Requests that send no message: `[channels.NAME.lookup]` and `[channels.NAME.probe]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from deliveryd.channels.header_fields import header_problems
from deliveryd.channels.http.address import address_problem
from deliveryd.channels.http.answer_options import (
    LONGEST_PAUSE,
    AnswerFinder,
    RowOptions,
    unreachable_rows,
)
from deliveryd.channels.http.request_options import (
    OWN_HTTP_HEADERS,
    BasicOptions,
    RequestParts,
    json_problems,
)
from deliveryd.channels.mapping import Name, mapping_problems, names_in
from deliveryd.model import format_duration
from deliveryd.options.tables import Table, raise_all
from deliveryd.options.units import Duration

PROVIDER_ID = Name("message", "providerId")
BY_NAME = frozenset({Name("message", "key"), Name("message", "id"), PROVIDER_ID})
"""The placeholders by which a provider can be asked."""


class AskOptions(Table):
    """A request that sends no message."""

    url: str
    method: Literal["GET", "POST"] = Field("GET", description="method of the request")
    query: dict[str, str] | None = Field(None, description="parameters added to the address")
    json_body: dict[str, Any] | None = Field(None, alias="json", description="body as JSON")
    headers: dict[str, str] = Field({}, description="headers added to the adapter's own")

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if problem := address_problem(url):
            raise ValueError(problem)
        return url

    @field_validator("json_body")
    @classmethod
    def _writable_as_json(cls, value: Any) -> Any:
        raise_all(json_problems(value))
        return value

    @field_validator("answers", check_fields=False)
    @classmethod
    def _reachable(cls, answers: Sequence[RowOptions]) -> Sequence[RowOptions]:
        raise_all(unreachable_rows(answers))
        return answers

    def parts(self) -> RequestParts:
        """Return the parts of the request, which asks for JSON unless the headers say otherwise."""
        headers = {"Accept": "application/json"} if "accept" not in map(str.lower, self.headers) else {}
        headers |= self.headers
        return RequestParts(self.method, self.url, self.json_body, None, self.query, headers)

    def mapped(self) -> dict[str, object]:
        """Return everything that may hold placeholders, by configuration key."""
        return {"url": self.url, "query": self.query, "json": self.json_body, "headers": self.headers}

    def problems(self, secrets: Mapping[str, object]) -> Iterator[str]:
        """Yield the problems of the placeholders and the headers."""
        yield from mapping_problems(self.mapped(), secrets)
        for place, name in names_in(self.mapped()):
            if problem := self.unfit(name):
                yield f"{place}: {problem}"
        yield from header_problems(self.headers, OWN_HTTP_HEADERS)

    def unfit(self, name: Name) -> str | None:
        """Return why a placeholder has no value here, or None."""
        raise NotImplementedError


class LookupAnswerOptions(RowOptions):
    """What an answer to the question means. The first row that fits counts; without one it is unknown."""

    verdict: Literal["taken", "not_taken", "unknown"] = Field(
        description="whether the provider has the message"
    )


def _bounded(seconds: float) -> float:
    if seconds > LONGEST_PAUSE:
        raise ValueError(f"must be at most {format_duration(LONGEST_PAUSE)}")
    return seconds


class LookupOptions(AskOptions):
    """A request by the message's key or id that shows whether the provider has the message.

    By {message.providerId}, only doubts can be settled in which the provider gave its id.
    """

    url: str = Field(
        description="address; {message.key}, {message.id} or {message.providerId} here, in query or in json"
    )
    after: Annotated[Duration, AfterValidator(_bounded)] = Field(
        60.0, description="least time after the doubt, since listings lag"
    )
    answers: Annotated[list[LookupAnswerOptions], Field(min_length=1)] = Field(
        description="what answers mean"
    )
    provider_id: AnswerFinder | None = Field(None, description="the provider's id of the message")

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

    @property
    def asks_by_provider_id(self) -> bool:
        """Whether the provider's own id is needed."""
        return any(name == PROVIDER_ID for _, name in names_in(self.mapped()))

    def unfit(self, name: Name) -> str | None:
        """Return why a placeholder has no value when a doubt is settled, or None."""
        if name.root in ("settings", "customer", "content"):
            return f"a doubt is settled without {{{name.root}.{name.field}}}"
        return None


class ProbeAnswerOptions(RowOptions):
    """What an answer means. The first row that fits counts; then the status.

    2xx is good, 401, 403 and 404 are rejected.
    """

    verdict: Literal["good", "rejected"] = Field(description="whether messages can be sent with the account")
    says: str | None = Field(None, description="what it means, for people")


class ProbeOptions(AskOptions):
    """A request by which `deliveryd check` asks whether address, account and credentials are right."""

    url: str = Field(description="address; {secret.NAME} here, in query, in json and in headers")
    basic: BasicOptions | None = Field(None, description="Basic authentication; left out: the channel's")
    answers: list[ProbeAnswerOptions] = Field(
        [], description="what answers mean; left out: by their statuses"
    )

    def mapped(self) -> dict[str, object]:
        """Return everything that may hold placeholders, by configuration key."""
        return {**super().mapped(), "basic": self.basic and self.basic.mapped()}

    def unfit(self, name: Name) -> str | None:
        """Return why a placeholder has no value without a message, or None."""
        return None if name.root == "secret" else "there is no message, so only {secret.NAME} has a value"
