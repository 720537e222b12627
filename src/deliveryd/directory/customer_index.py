"""All customers of one file, kept as its bytes and an index of IDs."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from deliveryd.cleaning import cleaned
from deliveryd.directory.records import Flaw, Record, RecordError, RecordFormat, Span, format_of
from deliveryd.model import Customer

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
