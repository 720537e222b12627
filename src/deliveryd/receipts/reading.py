"""Reads the reports in a provider's request, each on its own: pure functions of its parsed body."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple, cast

import orjson

from deliveryd.channels.receipt_options import IntermediateStatus, ReceiptOptions
from deliveryd.http.expressions import compile_expression
from deliveryd.http.finder import (
    Condition,
    ConditionOptions,
    Document,
    Finder,
    compile_condition,
    compile_conditions,
    compile_finder,
)
from deliveryd.http.json_pointer import (
    EVERY,
    Steps,
    follow,
    parse_pointer,
    wrong_shapes,
)
from deliveryd.receipts.request import Unreadable
from deliveryd.receipts.times import EARLIEST, HOW_FAR_AHEAD, compile_time

LONGEST_RAW = 4096
"""Characters that are kept of a report that can't be read."""

MOST_REPORTS = 10_000
"""Reports that one request may have, with what can't be read of it."""

READ_AT_ONCE = 25
"""Reports that are read until others may have a turn."""

MOST_UNREADABLE = 20
"""Reports of a request that can't be read and are kept; the others are counted."""

_CODE = re.compile(r"(?!(?:[^0-9]*[0-9]){8})[A-Za-z0-9_.:/-]{1,64}")
"""What is no text, such as a mail server's reason, which may have a name, an address or a number in it.

A phone number may be written in groups, and has eight digits at least.
"""

EVERY_REPORT = "delivered"
"""The word of reports without a status."""

Meaning = Literal["delivered", "failed", "intermediate", "none"]
Consent = Literal["stopped", "resumed"]


class Report(NamedTuple):
    """What a provider reports about one message, or one recipient.

    `word` is what has a meaning: the status, or the status and the code. `intermediate` is the status for the
    service, `consent` what it has about `recipient`. `at` is when it happened, or when the report came if it
    has no instant (`is_dated` False). `is_shared`: it is signed, and others may send by the same account; a
    report of ours has our reference, or the provider's id once that is known.
    """

    provider_id: str | None
    reference: str | None
    word: str
    meaning: Meaning
    at: int
    status: str = ""
    code: str | None = None
    intermediate: IntermediateStatus | None = None
    consent: Consent | None = None
    recipient: str | None = None
    is_dated: bool = True
    is_shared: bool = False

    @property
    def names_message(self) -> bool:
        """Whether it names the message it is about."""
        return self.provider_id is not None or self.reference is not None

    @property
    def details(self) -> str:
        """The status, and the code if there is one; not a text, nor what may be a phone number."""
        if self.code is None or not _CODE.fullmatch(self.code):
            return self.status
        return f"{self.status}/{self.code}"


class _TooMany(Unreadable):
    """A request has more reports than are read of one."""

    def __init__(self) -> None:
        super().__init__(f"there are more than {MOST_REPORTS} reports")


class Unread(NamedTuple):
    """A report of a list that can't be read: its JSON, and why."""

    raw: str
    reason: str


class ReadReports(NamedTuple):
    """The reports of a request, and those that can't be read: some of them, and how many more there are."""

    reports: Sequence[Report]
    unread: Sequence[Unread] = ()
    more_unread: int = 0


Slices = Generator[None, None, ReadReports]
"""Reads a request; pauses after each slice."""


NOTHING = ReadReports(())


def at_once(slices: Slices) -> ReadReports:
    """Return what is read, without pauses. Raises Unreadable."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return cast("ReadReports", end.value)


class _Unread:
    """What can't be read of a request; `reason` is that of the last."""

    def __init__(self) -> None:
        self.kept: list[Unread] = []
        self.count = 0
        self.reason = ""

    def add(self, tree: object, reason: str) -> None:
        """Count a report, and keep it if it is one of the first."""
        self.count += 1
        self.reason = reason
        if self.count <= MOST_UNREADABLE:
            self.kept.append(Unread(_raw(tree), reason))


class _Words(NamedTuple):
    """What each word or pair of words means for a message, and for a recipient."""

    meanings: Mapping[str, tuple[Meaning, IntermediateStatus | None]]
    consents: Mapping[str, Consent]


class ReportReader:
    """Reads what one provider reports."""

    def __init__(self, options: ReceiptOptions) -> None:
        self._each = None if options.each is None else _elements(parse_pointer(options.each))
        self._ignore = tuple((compile_condition(each), _absence(each)) for each in options.ignore)
        self._ignore_requests = compile_conditions(each for each in options.ignore if not each.absent)
        self._provider_id = _compiled(options.provider_id)
        part = options.provider_id_part
        self._part = compile_expression(part) if part is not None else None
        self._reference = _compiled(options.reference)
        self._is_signed = options.signature is not None
        self._is_shared = self._is_signed and bool(options.reference)
        self._singular = _singular([*options.provider_id, *options.reference])
        self._status = _compiled(options.status)
        self._code = _compiled(options.code)
        self._recipient = _compiled(options.recipient)
        self._words = _words(options)
        self._reported_at = _compiled(options.reported_at)
        self._read_time = compile_time(options.time, options.zone)

    def read(self, document: Document, received_at: int) -> Slices:
        """Read a request. Raises Unreadable if nothing in it can be read, or if it has too many reports."""
        if self._each is None:
            if self._is_ignored(document):
                return NOTHING
            reports: list[Report] = []
            yield from self._collect(document, received_at, reports)
            return ReadReports(reports)
        found = document.elements(self._each)
        if not found:
            return self._without_items(document, self._each)
        others = list(islice(wrong_shapes(document.tree, (*self._each, EVERY)), MOST_REPORTS))
        if len(found) + len(others) > MOST_REPORTS:
            raise _TooMany
        unread = _Unread()
        for value in others:
            unread.add(value, f"the shape isn't that of {_pointer((*self._each, EVERY))}")
        return (yield from self._read_items(document.each(self._each), received_at, unread))

    def _is_ignored(self, document: Document) -> bool:
        """Whether a request or an item is no report. Raises Unreadable for a shape that wasn't read.

        Where a value is absent because what should hold it has another shape, it isn't known to be absent.
        """
        if not self._ignore:
            return False
        _check_object(document.tree)
        for condition, absent in self._ignore:
            if condition.holds(document):
                if absent is not None:
                    _check_shapes(document, absent)
                return True
        return False

    def _read_items(self, items: Iterator[Document], received_at: int, unread: _Unread) -> Slices:
        reports: list[Report] = []
        for number, item in enumerate(items, 1):
            try:
                if not self._is_ignored(item):
                    yield from self._collect(item, received_at, reports)
            except _TooMany:
                raise
            except Unreadable as error:
                unread.add(item.tree, str(error))
            if number % READ_AT_ONCE == 0:
                yield
        if unread.count and not reports:
            raise Unreadable(f"none of {unread.count} reports can be read: {unread.reason}")
        return ReadReports(reports, unread.kept, unread.count - len(unread.kept))

    def _collect(self, item: Document, received_at: int, reports: list[Report]) -> Iterator[None]:
        """Add the reports of an item; it may have one for each of many ids."""
        for report in self._reports(item, received_at):
            reports.append(report)
            if len(reports) > MOST_REPORTS:
                raise _TooMany
            if len(reports) % READ_AT_ONCE == 0:
                yield

    def _without_items(self, document: Document, steps: Steps) -> ReadReports:
        """A request without any item: the list is empty, or it is one that is to be ignored.

        A condition that something is absent is about items: of other requests it would hold always.
        """
        _check_shapes(document, (*steps, EVERY))
        if _any_holds(self._ignore_requests, document):
            return NOTHING
        if EVERY not in steps and follow(document.tree, steps) == []:
            return NOTHING
        raise Unreadable(f"there is no list at {_pointer(steps)}")

    def _reports(self, item: Document, received_at: int) -> Iterator[Report]:
        """Read one item: a report, or one for each of several ids."""
        _check_object(item.tree)
        for steps in self._singular:
            if isinstance(several := follow(item.tree, steps), list) and len(several) > 1:
                raise Unreadable(f"there are {len(several)} reports at {_pointer(steps)}; set each")
        status, code = EVERY_REPORT, None
        if self._status:
            status = _first(self._status, item) or _missing("status", self._status)
            code = _first(self._code, item)
        pair = f"{status}/{code}" if code is not None else status
        word, (meaning, intermediate) = _meaning(self._words, status, pair)
        consent = self._words.consents.get(pair) or self._words.consents.get(status)
        recipient = _first(self._recipient, item)
        if consent is not None and recipient is None:
            if meaning == "none":
                _missing("recipient", self._recipient)
            consent = None  # what became of the message is known all the same
        ids = self._ids(item)
        reference = _first(self._reference, item)
        if not any(ids) and reference is None and meaning != "none" and not self._is_signed:
            _missing("provider_id or reference", (*self._provider_id, *self._reference))
        instant = None if meaning == "none" and consent is None else self._time(item, received_at)
        is_dated = instant is not None
        at = received_at if instant is None else instant
        for id_ in ids:
            yield Report(
                id_, reference, word, meaning, at, status, code, intermediate, consent, recipient, is_dated,
                self._is_shared,
            )  # fmt: skip

    def _ids(self, item: Document) -> Sequence[str | None]:
        for place in self._provider_id:
            found: Sequence[str] = place.find_all(item)
            if self._part is not None:
                found = [part for each in found if (part := self._part.found(each))]
            if found:
                return found
        return (None,)

    def _time(self, item: Document, received_at: int) -> int | None:
        """Return the first time that can be read; None: the report is undated."""
        for place in self._reported_at:
            if (text := place.find(item)) is None:
                continue
            try:
                at = self._read_time(text)
            except (ValueError, OverflowError):
                continue
            if EARLIEST <= at <= received_at + HOW_FAR_AHEAD:
                return at
        return None


def _check_object(tree: object) -> None:
    if not isinstance(tree, dict):
        raise Unreadable(_shape(tree))


def _check_shapes(document: Document, steps: Steps) -> None:
    """Raise Unreadable if the values at the steps can't be reached since something has another shape."""
    if any(True for _ in wrong_shapes(document.tree, steps)):
        raise Unreadable(f"the shape isn't that of {_pointer(steps)}")


def _absence(options: ConditionOptions) -> Steps | None:
    """Return the steps to what is absent by a condition; None: it is another condition."""
    return parse_pointer(options.at) if options.absent and options.at.startswith("/") else None


def _any_holds(conditions: Sequence[Condition], document: Document) -> bool:
    return bool(conditions) and any(condition.holds(document) for condition in conditions)


def _compiled(places: Sequence[str]) -> tuple[Finder, ...]:
    return tuple(map(compile_finder, places))


def _elements(steps: Steps) -> Steps:
    """Return the steps to a list, if they lead to its elements."""
    return steps[:-1] if steps[-1:] == (EVERY,) else steps


def _singular(places: Sequence[str]) -> tuple[Steps, ...]:
    """Return where lists begin of which a pointer names one element, as in "/results/0/id"."""
    found = []
    for place in places:
        steps = parse_pointer(place) if place.startswith("/") else ()
        found += [steps[:depth] for depth, step in enumerate(steps) if step.isdecimal()]
    return tuple(steps for steps in found if EVERY not in steps)


def _words(options: ReceiptOptions) -> _Words:
    meanings: dict[str, tuple[Meaning, IntermediateStatus | None]] = {}
    meanings |= dict.fromkeys(options.delivered, ("delivered", None))
    meanings |= dict.fromkeys(options.failed, ("failed", None))
    for status, words in options.intermediate.items():
        meanings |= dict.fromkeys(words, ("intermediate", status))
    if not options.status:
        meanings[EVERY_REPORT] = ("delivered", None)
    consents: dict[str, Consent] = {}
    consents |= dict.fromkeys(options.stopped, "stopped")
    consents |= dict.fromkeys(options.resumed, "resumed")
    return _Words(meanings, consents)


def _meaning(words: _Words, status: str, pair: str) -> tuple[str, tuple[Meaning, IntermediateStatus | None]]:
    """Return the word that has a meaning, the pair before the status, and what it is."""
    for word in (pair, status):
        if (meaning := words.meanings.get(word)) is not None:
            return word, meaning
    return (pair if pair in words.consents else status), ("none", None)


def _first(places: Sequence[Finder], document: Document) -> str | None:
    for place in places:
        if (value := place.find(document)) is not None:
            return value
    return None


def _missing(what: str, places: Sequence[Finder]) -> str:
    expressions = ", ".join(place.expression for place in places)
    raise Unreadable(f"there is no usable {what} at {expressions}")


def _pointer(steps: Steps) -> str:
    return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps) or "the body"


def _shape(value: object) -> str:
    if isinstance(value, list):
        return "the report is a list; set each"
    return "the report is no object"


def _raw(tree: object) -> str:
    """Return the JSON of an item, which may be nested deeper than it can be written again."""
    try:
        return orjson.dumps(tree).decode()[:LONGEST_RAW]
    except orjson.JSONEncodeError:  # too deep; or half a surrogate pair, or an integer of more than 64 bits
        pass
    try:
        return json.dumps(tree, separators=(",", ":"))[:LONGEST_RAW]
    except RecursionError:
        return f"nested too deep to be kept: {type(tree).__name__}"
