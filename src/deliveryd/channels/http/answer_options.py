"""The table of a provider's answers: `[[channels.NAME.answers]]`, and its checks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator
from pydantic import model_validator as checks

from deliveryd.http.finder import HEADER, QUERY, ConditionOptions, FinderText
from deliveryd.model import format_duration
from deliveryd.options.tables import Table
from deliveryd.options.units import Duration

LONGEST_PAUSE = 3600.0
"""Most seconds for which a provider's request to wait is honoured."""

COMPLETE_STATUSES = range(200, 600)
"""The statuses of complete answers."""

ACCEPTING = range(200, 300)

_CLASS = re.compile(r"([2-5])xx")
_NAMES = re.compile(r"(?!/)[$\w./-]+")
"""A regular expression that finds itself: a pointer without its slash, or a path in another notation."""
_WITH_PAUSE = ("try_again", "in_doubt")
_ABOUT_ONE = ("try_again", "refused")


def _in_an_answer(expression: str) -> str:
    if expression.startswith(QUERY):
        raise ValueError("an answer has no query")
    if _NAMES.fullmatch(expression):
        raise ValueError(f'{expression} is read as a regular expression; a JSON Pointer begins with "/"')
    return expression


AnswerFinder = Annotated[FinderText, AfterValidator(_in_an_answer)]
"""A place in an answer."""


def _statuses(status: int | str) -> range:
    """Return the statuses that a number or a text such as "4xx" stands for. Raises ValueError."""
    if isinstance(status, int):
        if status not in COMPLETE_STATUSES:
            raise ValueError(f"{status} isn't a status of a complete answer; there are 200 to 599")
        return range(status, status + 1)
    found = _CLASS.fullmatch(status)
    if found is None:
        raise ValueError(f'expected a number, or "2xx", "3xx", "4xx" or "5xx", not {status!r}')
    return range(int(found[1]) * 100, int(found[1]) * 100 + 100)


class PauseOptions(Table):
    """Where an answer has how long to wait."""

    at: AnswerFinder = Field(description="place of the pause")
    unit: Literal["s", "ms", "at"] = Field("s", description='seconds, milliseconds; "at": an instant')


def _kind_of_pause(value: object) -> str:
    return "place" if isinstance(value, dict | PauseOptions) else "duration"


def _bounded(seconds: float) -> float:
    if not 0 < seconds <= LONGEST_PAUSE:
        raise ValueError(f"must be greater than 0 and at most {format_duration(LONGEST_PAUSE)}")
    return seconds


PauseLength = Annotated[
    Annotated[Duration, AfterValidator(_bounded), Tag("duration")] | Annotated[PauseOptions, Tag("place")],
    Discriminator(_kind_of_pause),
]


class RowOptions(Table):
    """Which answers a row fits: those with one of its statuses for which all its conditions hold."""

    status: Annotated[list[int | str], Field(min_length=1)] = Field(
        description='statuses: numbers, or "4xx" for all of a class'
    )
    where: list[ConditionOptions] = Field([], description="conditions on the body and the headers")

    @field_validator("status", mode="before")
    @classmethod
    def _a_list(cls, status: Any) -> Any:
        return status if isinstance(status, list | tuple) else [status]

    @field_validator("status")
    @classmethod
    def _known(cls, status: list[int | str]) -> list[int | str]:
        for each in status:
            _statuses(each)
        return status

    @field_validator("where")
    @classmethod
    def _in_an_answer(cls, where: list[ConditionOptions]) -> list[ConditionOptions]:
        for condition in where:
            _in_an_answer(condition.at)
        return where

    @property
    def statuses(self) -> frozenset[int]:
        """Return all statuses of the row."""
        return frozenset(status for each in self.status for status in _statuses(each))

    @property
    def reads_body(self) -> bool:
        """Whether a condition depends on the body."""
        return any(not condition.at.startswith(HEADER) for condition in self.where)

    @property
    def reads_json(self) -> bool:
        """Whether a condition points into the body as JSON."""
        return any(condition.at.startswith("/") for condition in self.where)

    def includes(self, other: RowOptions) -> bool:
        """Whether this row fits every answer that the other one fits, the status aside."""
        return all(any(_implies(each, mine) for each in other.where) for mine in self.where)


class AnswerOptions(RowOptions):
    """What an answer means. The first row that fits counts; then the meanings of statuses.

    A row fits if its status and all its conditions do.
    """

    verdict: Literal["accepted", "refused", "stopped", "try_again", "in_doubt", "misconfigured"] = Field(
        description="what the answer means"
    )
    only_this: bool = Field(
        False, description="the answer concerns this recipient alone; with try_again and refused"
    )
    new_key: bool = Field(
        False, description="the next attempt has a new key, as the provider keeps that of what it rejected"
    )
    after: PauseLength | None = Field(
        None, description="pause before the next attempt; left out: the value of Retry-After"
    )
    reason: AnswerFinder | None = Field(
        None, description="place of the provider's own words, which only explain shows"
    )

    @checks(mode="after")
    def _fitting_keys(self) -> Self:
        if self.only_this and self.verdict not in _ABOUT_ONE:
            raise ValueError(f"only_this needs the verdict {' or '.join(_ABOUT_ONE)}")
        if self.new_key and self.verdict != "try_again":
            raise ValueError("new_key needs the verdict try_again")
        if self.after is not None and self.verdict not in _WITH_PAUSE:
            raise ValueError(f"after needs the verdict {' or '.join(_WITH_PAUSE)}")
        if self.reason is not None and self.verdict == "accepted":
            raise ValueError("an accepted message has no reason")
        return self


def _implies(condition: ConditionOptions, other: ConditionOptions) -> bool:
    """Whether the other condition holds whenever this one does."""
    if condition == other:
        return True
    if condition.at != other.at or condition.one_of is None or other.one_of is None:
        return False
    return set(condition.one_of) <= set(other.one_of)


def answer_problems(rows: Sequence[AnswerOptions]) -> Iterator[str]:
    """Yield the problems of a table, one line each."""
    yield from unreachable_rows(rows)
    doubted = [row for row in rows if not row.where and row.verdict == "in_doubt"]
    if _reads_acceptance(rows) and not any(row.statuses.issuperset(ACCEPTING) for row in doubted):
        yield (
            "rows for 2xx read the body, so a body that fits none of them must not count as accepted:"
            ' add a last row with status = ["2xx"] and verdict = "in_doubt"'
        )


def unreachable_rows(rows: Sequence[RowOptions]) -> Iterator[str]:
    """Yield the rows that can never apply, one line each."""
    for index, row in enumerate(rows):
        earlier = [(number, each) for number, each in enumerate(rows[:index], 1) if each.includes(row)]
        left = row.statuses.difference(*(each.statuses for _, each in earlier))
        if not left:
            numbers = " and ".join(str(number) for number, each in earlier if each.statuses & row.statuses)
            yield f"row {index + 1} never applies: row {numbers} before it fits the same answers"


def _reads_acceptance(rows: Sequence[AnswerOptions]) -> bool:
    return any(row.reads_body and not row.statuses.isdisjoint(ACCEPTING) for row in rows)
