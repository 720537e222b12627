"""A customer directory in a file that may be replaced while in use: its bytes and an index of IDs."""

from __future__ import annotations

import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import anyio

from deliveryd.cleaning import cleaned
from deliveryd.directory.base import Answered
from deliveryd.directory.records import Flaw, Record, RecordError, RecordFormat, Span, format_of
from deliveryd.errors import ConfigError
from deliveryd.model import Customer
from deliveryd.runtime.rights import tampering
from deliveryd.runtime.threads import in_thread

_SHOWN = 20
_KEPT = 4096
_INT64 = range(-(2**63), 2**63)


class Unusable(NamedTuple):
    """The file is invalid: one line per mistake, with its place and without values."""

    problems: list[str]


class CustomerIndex:
    """Finds a customer by ID, with about 24 bytes of memory per customer besides the file's bytes.

    Customers that were found are cached, up to 4,096 of them; then the cache is cleared.
    """

    def __init__(self, source: RecordFormat, ids: array[int], spans: tuple[array[int], array[int]]) -> None:
        self._source = source
        self._ids = ids
        self._starts, self._ends = spans
        self._found: dict[int, Customer] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, customer_id: int) -> Customer | None:
        """Return the customer with this ID, or None."""
        return self._found.get(customer_id) or self._read(customer_id)

    def _read(self, customer_id: int) -> Customer | None:
        place = bisect_left(self._ids, customer_id)
        if place == len(self._ids) or self._ids[place] != customer_id:
            return None
        fields = self._source.read(Span(self._starts[place], self._ends[place]))
        customer = Customer(customer_id, {name: text for name, text in fields.items() if name != "id"})
        if len(self._found) >= _KEPT:
            self._found.clear()
        self._found[customer_id] = customer
        return customer


def read_index(path: Path, data: bytes) -> CustomerIndex | Unusable:
    """Read a whole customer file, or return its mistakes as `path:line: what`, up to 20 of them."""
    if not data:
        return Unusable([f"{path}: empty"])
    try:
        source = format_of(path)(data)
        survey = _Survey()
        for record in source.records():
            survey.add(record)
    except RecordError as error:
        return Unusable([f"{path}: {error}"])
    order = survey.order()
    if survey.flaws:
        return Unusable(_problems(path, data, survey.flaws))
    return CustomerIndex(source, survey.ids_in(order), survey.spans_in(order))


def fields_in(path: Path) -> frozenset[str]:
    """Return the fields that any customer in a file has; none for an invalid file. Raises OSError."""
    return frozenset(name for record in records_of(path) for name in record.fields)


def records_of(path: Path) -> Iterator[Record]:
    """Yield the valid records of a file; none of an invalid one. Raises OSError."""
    with suppress(RecordError):
        for record in format_of(path)(path.read_bytes()).records():
            if isinstance(record, Record):
                yield record


class _Survey:
    """The results of one pass over the records, in the order of the file."""

    def __init__(self) -> None:
        self._ids = array("q")
        self._starts = array("Q")
        self._ends = array("Q")
        self.flaws: list[Flaw] = []

    def add(self, record: Record | Flaw) -> None:
        if isinstance(record, Flaw):
            self.flaws.append(record)
            return
        try:
            self._ids.append(_id_of(record))
        except RecordError as error:
            self.flaws.append(Flaw(record.span.start, str(error)))
            return
        self._starts.append(record.span.start)
        self._ends.append(record.span.end)

    def order(self) -> list[int]:
        """Return the records ordered by ID; the second record with an ID becomes a flaw."""
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        for before, after in pairwise(order):
            if self._ids[before] == self._ids[after]:
                self.flaws.append(
                    Flaw(self._starts[after], "duplicate id, first on line", self._starts[before])
                )
        return order

    def ids_in(self, order: list[int]) -> array[int]:
        return array("q", map(self._ids.__getitem__, order))

    def spans_in(self, order: list[int]) -> tuple[array[int], array[int]]:
        starts = array("Q", map(self._starts.__getitem__, order))
        return starts, array("Q", map(self._ends.__getitem__, order))


def _problems(path: Path, data: bytes, flaws: list[Flaw]) -> list[str]:
    shown = sorted(flaws)[:_SHOWN]
    problems = [f"{path}:{_line_of(data, flaw.start)}: {_reason(data, flaw)}" for flaw in shown]
    if len(flaws) > _SHOWN:
        problems.append(f"and {len(flaws) - _SHOWN} more")
    return problems


def _reason(data: bytes, flaw: Flaw) -> str:
    return flaw.reason if flaw.earlier is None else f"{flaw.reason} {_line_of(data, flaw.earlier)}"


def _id_of(record: Record) -> int:
    text = cleaned(record.fields.get("id", ""))
    if not text:
        raise RecordError("no id")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise RecordError("the id isn't an integer")
    if len(digits) > 19 or int(text) not in _INT64:
        raise RecordError("the id has more than 64 bits")
    return int(text)


def _line_of(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


class _Stamp(NamedTuple):
    """Identifies a version of a file; changes of rights or a time set back show in `changed`."""

    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class _Reading(NamedTuple):
    """A file that was read: its version before, whether it was unchanged afterwards, and its contents."""

    stamp: _Stamp
    steady: bool
    contents: CustomerIndex | Unusable


class FileDirectory:
    """Looks customers up in a JSON Lines or CSV file (design 6).

    The look-up that detects a change waits until the file has been read again, so that its messages see the
    change; concurrent look-ups use the previous contents. A changed file counts if it is the same at two
    looks, `check_interval` apart: it may be being written.

    If the file is invalid or missing, or has lost more than half of its customers, the previous contents stay
    and the problem is passed to `on_problem`; so is a loss of more than a fifth.
    """

    is_down = False

    def __init__(
        self,
        path: Path,
        index: CustomerIndex,
        stamp: _Stamp,
        on_problem: Callable[[str], None],
        check_interval: float,
    ) -> None:
        self._path = path
        self._index = index
        self._stamp = stamp
        self._on_problem = on_problem
        self._check_interval = check_interval
        self._next_check = float("-inf")
        self._checking = False
        self._unreachable: str | None = None

    @classmethod
    def load(cls, path: Path, on_problem: Callable[[str], None], check_interval: float = 1.0) -> Self:
        """Read the file as it is; check for changes at most every `check_interval` seconds.

        Raises ConfigError, which lists up to 20 mistakes by line, without values.
        """
        try:
            reading = _read(path)
        except OSError as error:
            raise ConfigError([_unreachable(path, error)]) from None
        if isinstance(reading.contents, Unusable):
            raise ConfigError(reading.contents.problems)
        return cls(path, reading.contents, reading.stamp, on_problem, check_interval)

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        """Answer all of `ids`, unless a check for changes is due."""
        return {} if self._check_is_due() else self._find(ids)

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """Answer all `ids` at once from the latest valid contents."""
        if self._check_is_due():
            self._next_check = anyio.current_time() + self._check_interval
            await self._check()
        await answered(self._find(ids))

    async def read_to_accept(self) -> Callable[[], int]:
        """Read the file; return what puts it to use, whoever is gone, and returns the number of customers.

        Raises ConfigError if the file is invalid.
        """
        try:
            reading = await in_thread(partial(_read, self._path), abandon_on_cancel=True)
        except OSError as error:
            raise ConfigError([_unreachable(self._path, error)]) from None
        index = reading.contents
        if isinstance(index, Unusable):
            raise ConfigError(index.problems)

        def accept() -> int:
            self._stamp, self._index = reading.stamp, index
            return len(index)

        return accept

    async def probe(self) -> str | None:
        """Return None: loading has read the file."""
        return None

    async def aclose(self) -> None:
        """Do nothing: no resource is open."""

    def _check_is_due(self) -> bool:
        return not self._checking and anyio.current_time() >= self._next_check

    def _find(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        return {id_: self._index.find(id_) for id_ in ids}

    async def _check(self) -> None:
        self._checking = True
        try:
            read = partial(_read_if_new, self._path, self._stamp, self._check_interval)
            reading = await in_thread(read, abandon_on_cancel=True)
        except OSError as error:
            self._report_unreachable(_unreachable(self._path, error))
        else:
            self._unreachable = None
            if reading is not None:
                self._settle(reading)
        finally:
            self._checking = False

    def _settle(self, reading: _Reading) -> None:
        if not reading.steady:  # being written: the next check finds another change
            return
        self._stamp = reading.stamp
        if isinstance(reading.contents, Unusable):
            self._on_problem("; ".join(reading.contents.problems))
            return
        before, now = len(self._index), len(reading.contents)
        difference = f"{self._path}: {now:,} customers instead of {before:,}"
        if now < before / 2:
            self._on_problem(f"{difference}: the former ones stay in use; run deliveryd reload --accept")
            return
        if now < before * 4 / 5:
            self._on_problem(difference)
        self._index = reading.contents

    def _report_unreachable(self, problem: str) -> None:
        if problem != self._unreachable:
            self._unreachable = problem
            self._on_problem(problem)


def _read_if_new(path: Path, known: _Stamp, pause: float) -> _Reading | None:
    """Return the file's contents, steady if they are the same `pause` seconds after the first look."""
    first_look = _Stamp.of(path.stat())
    if first_look == known:
        return None
    time.sleep(pause)
    reading = _read(path)
    return reading._replace(steady=reading.steady and reading.stamp == first_look)


def _read(path: Path) -> _Reading:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        before = _Stamp.of(status)
        if problems := tampering(path, status, os.geteuid()):
            return _Reading(before, steady=True, contents=Unusable(problems))
        data = file.read()
        after = _Stamp.of(os.fstat(file.fileno()))
    return _Reading(before, before == after, read_index(path, data))


def _unreachable(path: Path, error: OSError) -> str:
    return f"{path}: {error.strerror or type(error).__name__}"
