"""Verdicts on providers' HTTP answers: the configured table, then the usual meanings of statuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from textwrap import shorten
from typing import NamedTuple

from deliveryd.channels.base import Accepted, Attempted, InDoubt, Misconfigured, Refused, Stopped, TryAgain
from deliveryd.channels.http.answer_options import ACCEPTING, LONGEST_PAUSE, AnswerOptions, PauseOptions
from deliveryd.http.finder import Condition, Document, Finder, all_hold, compile_condition, compile_finder
from deliveryd.http.responses import Now, is_page, retry_after, utc_now
from deliveryd.http.wire import WireResponse
from deliveryd.model import SECOND, parse_instant

PauseReader = Callable[[Document], float | None]
"""Returns the seconds to wait, at most an hour; None: the answer doesn't say."""

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_MILLISECONDS_FROM = 100_000_000_000  # in seconds, this would be the year 5138


def compile_pause(after: PauseOptions | float | None, now: Now = utc_now) -> PauseReader:
    """Compile the key `after` of a row; without it, or without a value in its place, Retry-After counts."""
    if isinstance(after, float):
        return lambda _: after
    finder = None if after is None else compile_finder(after.at)
    unit = "s" if after is None else after.unit

    def pause(document: Document) -> float | None:
        text = None if finder is None else finder.find(document)
        seconds = None if text is None else _seconds(text.strip(), unit, now)
        if seconds is None:
            return retry_after(document.headers.get("retry-after"), LONGEST_PAUSE, now)
        return min(max(seconds, 0.0), LONGEST_PAUSE)

    return pause


def _seconds(text: str, unit: str, now: Now) -> float | None:
    """Read a length of time, or with the unit "at" an instant.

    That is in seconds or milliseconds since 1970, ISO 8601, or a date as headers have it.
    """
    if _NUMBER.fullmatch(text):
        number = float(text)
        if unit == "at":
            return (number / 1000 if number >= _MILLISECONDS_FROM else number) - now().timestamp()
        return number / 1000 if unit == "ms" else number
    if unit == "at":
        with suppress(ValueError):
            return parse_instant(text) / SECOND - now().timestamp()
    return None if unit == "ms" else retry_after(text, LONGEST_PAUSE, now)


SAID_BY_OTHERS = 503
"""A status that gateways also send if the provider behind them took the message."""

_NOT_TAKEN = frozenset({425, 429, 503})
_IN_DOUBT = frozenset({408, 409})
_NOT_FOR_US = frozenset({401, 403, 405, 407})


def failure(status: int, wait: str | None, host: str | None = None, now: Now = utc_now) -> Attempted:
    """Return the verdict on a status other than 2xx; `wait` is the answer's Retry-After.

    Any 5xx but 503 is in doubt: the server may have taken the message before it failed, and a gateway doesn't
    know what its upstream did. So are 408, and 409, the usual answer to a repeat while the first request is
    still in progress.
    """
    reason = f"provider answered {status}"
    if status in _NOT_TAKEN:
        after = retry_after(wait, LONGEST_PAUSE, now)
        return TryAgain(reason, after, may_have_arrived=status == SAID_BY_OTHERS)
    if status >= 500 or status in _IN_DOUBT:
        return InDoubt(reason, retry_after(wait, LONGEST_PAUSE, now))
    if status in _NOT_FOR_US or status < 400:
        return Misconfigured(reason, host)
    return Refused(reason, host)


SAID_OF_THE_REQUEST = frozenset({413, 414, 431})
"""Refusals for the size of a request, which hold whatever answers them."""

LONGEST_WORDS = 500
"""Most characters of a provider's own words that are kept."""

_LONGEST_ROWS = 120
"""Most characters of the rows that a reason lists, each with the places that it reads."""

_LONGEST_TEXT = 4 * 1024
"""Most characters of a text that words are taken from."""


class AnswerReader:
    """Reads the answers of one provider, whose `host` is named with its refusals.

    `masked` returns a text without secrets: some providers repeat a key that they refuse.
    """

    def __init__(
        self,
        rows: Sequence[AnswerOptions],
        provider_id: str | None,
        host: str,
        now: Now = utc_now,
        masked: Callable[[str], str] = str,
    ) -> None:
        self._host = host
        self._now = now
        self._masked = masked
        self._provider_id = compile_finder(provider_id) if provider_id else None
        self._is_json_due = provider_id is not None and provider_id.startswith("/")
        self._reads_json = self._is_json_due or any(row.reads_json for row in rows)
        compiled = [_compile(position, row, now) for position, row in enumerate(rows)]
        statuses = frozenset[int]().union(*(row.statuses for row in compiled))
        self._tables = {
            status: _table([row for row in compiled if status in row.statuses]) for status in statuses
        }
        self._unfit = {status: _unfit_rows(compiled, status) for status in statuses & set(ACCEPTING)}

    def verdict(self, answer: WireResponse) -> Attempted:
        """Return the verdict. Of the body, its reason contains no more than a configured code."""
        table = self._tables.get(answer.status)
        if table is not None:
            document = Document(answer.body, answer.headers)
            fit = _first_fit(table, document)
            if fit is not None:
                verdict = self._of_row(*fit, answer.status, document)
                return verdict if fit.row.conditions else self._unless_page(verdict, answer)
        if answer.status in ACCEPTING:
            if self._provider_id is None:
                return self._unless_page(Accepted(), answer)
            document = Document(answer.body, answer.headers)
            found = self._provider_id.find(document)
            if found is not None:
                return Accepted(found)
            return self._unless_page(self._without_id(document, answer.status), answer)
        verdict = failure(answer.status, answer.headers.get("retry-after"), self._host, self._now)
        if isinstance(verdict, InDoubt):
            return verdict._replace(provider_id=self.provider_id(answer))
        return self._unless_page(verdict, answer)

    def row(self, answer: WireResponse) -> int | None:
        """Return the position of the row that fits an answer; None: its status alone counts."""
        fit = _first_fit(self._tables.get(answer.status, ()), Document(answer.body, answer.headers))
        return None if fit is None else fit.row.position

    def provider_id(self, answer: WireResponse) -> str | None:
        """Return the provider's id of the message, if the answer has it."""
        return self._id_in(Document(answer.body, answer.headers))

    def _id_in(self, document: Document) -> str | None:
        return self._provider_id.find(document) if self._provider_id is not None else None

    def _without_id(self, document: Document, status: int, *, is_said: bool = False) -> Attempted:
        """Return the verdict on what counts as accepted, without the ID that is due.

        `is_said`: not only by the status of the answer.
        """
        if self._is_json_due and not is_said and not document.is_readable:
            return InDoubt(f"provider answered {status} without JSON", unreadable=True)
        return Accepted(None, lacks_id=True)

    def _unless_page(self, verdict: Attempted, answer: WireResponse) -> Attempted:
        """Return the verdict by a status, unless it ends the message and seems not to be the provider's."""
        if isinstance(verdict, Accepted):
            is_due = verdict.provider_id is not None
        else:
            is_due = not self._is_json_due or answer.status in SAID_OF_THE_REQUEST
        if is_due or not isinstance(verdict, Accepted | Refused | Stopped) or not is_page(answer.body):
            return verdict
        return InDoubt(f"provider answered {answer.status} with a page", unreadable=True)

    def _of_row(self, row: _Row, code: str | None, status: int, document: Document) -> Attempted:
        reason = f"provider answered {status}{'' if code is None else f' (code {code})'}"
        if row.verdict == "accepted":
            found = self._id_in(document)
            if found is not None or self._provider_id is None or status not in ACCEPTING:
                return Accepted(found)
            return self._without_id(document, status, is_said=bool(row.conditions))
        words = self._words_in(document, row.words) if row.words is not None else None
        match row.verdict:
            case "refused":
                by = None if row.only_this else self._host
                return Refused(reason, by, ends_channel=True, words=words)
            case "stopped":
                return Stopped(reason, words)
            case "try_again":
                said_by_others = status == SAID_BY_OTHERS and not row.conditions
                pause = row.pause(document)
                return TryAgain(reason, pause, row.only_this, said_by_others, words, row.new_key)
            case "misconfigured":
                return Misconfigured(reason, self._host, words)
        is_unsaid = status in ACCEPTING and code is None
        is_unreadable = is_unsaid and self._reads_json and not document.is_readable
        if is_unsaid:
            lack = "JSON" if is_unreadable else f"saying whether it accepted{self._unfit_for(row, status)}"
            reason = f"provider answered {status} without {lack}"
        return InDoubt(reason, row.pause(document), words, self._id_in(document), is_unreadable)

    def _unfit_for(self, row: _Row, status: int) -> str:
        """Return which rows before this one don't fit; nothing if conditions are the reason why it does."""
        return "" if row.conditions else self._unfit[status]

    def _words_in(self, document: Document, finder: Finder) -> str | None:
        """Return the provider's own words in one printable line, cut only once no secret is in them."""
        whole = next(finder.texts(document), "")
        text = self._masked(whole[:_LONGEST_TEXT])
        line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
        if len(whole) > _LONGEST_TEXT and len(line) < _LONGEST_TEXT // 2:
            return None  # it may end with half a secret
        return line[:LONGEST_WORDS] or None


class _Row(NamedTuple):
    """A compiled row of the table."""

    position: int
    statuses: frozenset[int]
    conditions: tuple[Condition, ...]
    verdict: str
    only_this: bool
    new_key: bool
    pause: PauseReader
    words: Finder | None

    def fit(self, document: Document) -> _Fit | None:
        """Return the row with the first configured value that the answer has; None: it doesn't fit."""
        if not all_hold(self.conditions, document):
            return None
        codes = (each.matched(document) for each in self.conditions if each.one_of)
        return _Fit(self, next(codes, None))


class _Fit(NamedTuple):
    """A row that fits an answer, and the value by which it does."""

    row: _Row
    code: str | None


class _Switch:
    """Consecutive rows that begin with a comparison at the same place, found by the value there."""

    def __init__(self, rows: Iterable[_Row]) -> None:
        self._by_value: dict[str, list[_Row]] = {}
        for row in rows:
            self._finder = row.conditions[0].finder
            for value in row.conditions[0].one_of:
                self._by_value.setdefault(value, []).append(row)

    def fit(self, document: Document) -> _Fit | None:
        """Return the first row that fits, with its value."""
        found = [
            _Fit(row, text) for text in self._finder.texts(document) for row in self._by_value.get(text, ())
        ]
        if len(found) > 1:
            found.sort(key=lambda fit: fit.row.position)
        return next((fit for fit in found if all_hold(fit.row.conditions[1:], document)), None)


def _compile(position: int, row: AnswerOptions, now: Now) -> _Row:
    return _Row(
        position,
        row.statuses,
        tuple(map(compile_condition, row.where)),
        row.verdict,
        row.only_this,
        row.new_key,
        compile_pause(row.after, now),
        None if row.reason is None else compile_finder(row.reason),
    )


def _first_fit(table: Iterable[_Row | _Switch], document: Document) -> _Fit | None:
    for part in table:
        fit = part.fit(document)
        if fit is not None:
            return fit
    return None


def _unfit_rows(rows: Sequence[_Row], status: int) -> str:
    """Return the words for an answer with this status that no row with conditions fits."""
    tried = [
        f"{row.position + 1}: {' and '.join(each.finder.expression for each in row.conditions)}"
        for row in rows
        if status in row.statuses and row.conditions
    ]
    if not tried:
        return ""
    return f": no row of answers fits ({shorten('; '.join(tried), _LONGEST_ROWS, placeholder=' ...')})"


def _table(rows: Sequence[_Row]) -> tuple[_Row | _Switch, ...]:
    """Return the rows of one status in order, with rows that compare the same place put together."""
    parts: list[_Row | _Switch] = []
    for place, run in groupby(rows, _compared):
        together = list(run)
        parts += together if place is None or len(together) == 1 else [_Switch(together)]
    return tuple(parts)


def _compared(row: _Row) -> str | None:
    """Return the place at which a row compares first, if it begins with a comparison."""
    first = row.conditions[0] if row.conditions else None
    return first.finder.expression if first is not None and first.one_of else None
