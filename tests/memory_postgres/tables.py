"""Tables: their columns and rules, the versions of their rows, and ways to find them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import errors

from memory_postgres.versions import Snapshot, Version

_RANGES = {
    "smallint": 1 << 15,
    "integer": 1 << 31,
    "bigint": 1 << 63,
    "xid8": 1 << 63,
    "timestamptz": 1 << 63,
}
_KINDS: dict[str, type] = {"text": str, "boolean": bool, "bytea": bytes, "text[]": list}


class ColumnOf(NamedTuple):
    """A column of a table. `default`: what makes its value where none is given."""

    name: str
    type: str
    is_required: bool
    default: Callable[[Any], Any] | None


class Definition(NamedTuple):
    """A table as its schema describes it: `key` and `indexed` are places of columns."""

    name: str
    columns: tuple[ColumnOf, ...]
    key: tuple[int, ...]
    indexed: frozenset[int]
    partitioned_by: int | None

    def place(self, column: str) -> int:
        """The place of a column. Raises KeyError."""
        for place, each in enumerate(self.columns):
            if each.name == column:
                return place
        raise KeyError(column)

    def check(self, row: Sequence[Any], places: Iterable[int]) -> None:
        """Raise what the server raises for values that their columns don't hold."""
        for place in places:
            column, value = self.columns[place], row[place]
            if value is None:
                if column.is_required:
                    raise errors.NotNullViolation(
                        f'null value in column "{column.name}" of relation "{self.name}" violates not-null'
                        " constraint"
                    )
            elif (limit := _RANGES.get(column.type)) is not None:
                if type(value) is not int:
                    raise self._mismatch(column, value)
                if not -limit <= value < limit:
                    raise errors.NumericValueOutOfRange(f"{column.type} out of range")
            elif type(value) is not _KINDS[column.type]:
                raise self._mismatch(column, value)

    def _mismatch(self, column: ColumnOf, value: object) -> psycopg.Error:
        return errors.DatatypeMismatch(
            f'column "{column.name}" of "{self.name}" is of type {column.type}, not of {type(value).__name__}'
        )


class Table:
    """The versions of a table's rows. Those of all partitions are together, with their day."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.versions: dict[Version, None] = {}
        self.by: dict[int, dict[Any, dict[Version, None]]] = {place: {} for place in definition.indexed}
        self.order: dict[int, list[Any]] = {}

    def add(self, version: Version) -> None:
        """Put a version in."""
        self.versions[version] = None
        for place, index in self.by.items():
            key = version.row[place]
            if key is None:
                continue
            there = index.get(key)
            if there is None:
                index[key] = {version: None}
                if (order := self.order.get(place)) is not None:
                    insort(order, key)
            else:
                there[version] = None

    def remove(self, version: Version) -> None:
        """Take a version out that nobody can see any more."""
        del self.versions[version]
        for place, index in self.by.items():
            key = version.row[place]
            if key is None:
                continue
            there = index[key]
            del there[version]
            if not there:
                del index[key]
                if (order := self.order.get(place)) is not None:
                    del order[bisect_left(order, key)]

    def all(self, snapshot: Snapshot) -> list[Version]:
        """The rows."""
        sees = snapshot.sees
        return [version for version in self.versions if sees(version)]

    def equal(self, snapshot: Snapshot, place: int, key: Any) -> list[Version]:
        """The rows that have a value in an indexed column."""
        there = self.by[place].get(key)
        if there is None:
            return []
        sees = snapshot.sees
        return [version for version in there if sees(version)]

    def among(self, snapshot: Snapshot, place: int, keys: Iterable[Any] | None) -> list[Version]:
        """The rows that have one of these values."""
        sees, index = snapshot.sees, self.by[place]
        return [
            version
            for key in sorted({key for key in keys or () if key is not None})
            for version in index.get(key, ())
            if sees(version)
        ]

    def between(
        self,
        snapshot: Snapshot,
        place: int,
        lows: Sequence[tuple[Any, bool]],
        highs: Sequence[tuple[Any, bool]],
    ) -> list[Version]:
        """The rows whose value is within bounds; with each bound whether it is outside itself."""
        order = self.order.get(place)
        if order is None:
            order = self.order[place] = sorted(self.by[place])
        first, last = 0, len(order)
        for low, is_open in lows:
            if low is None:
                return []
            first = max(first, bisect_right(order, low) if is_open else bisect_left(order, low))
        for high, is_open in highs:
            if high is None:
                return []
            last = min(last, bisect_left(order, high) if is_open else bisect_right(order, high))
        sees, index = snapshot.sees, self.by[place]
        return [version for key in order[first:last] for version in index[key] if sees(version)]

    def same_key(self, row: Sequence[Any]) -> list[Version]:
        """All versions with the key of this row."""
        key = self.definition.key
        if not key:
            return []
        there = self.by[key[0]].get(row[key[0]], ())
        return [each for each in there if all(each.row[place] == row[place] for place in key)]
