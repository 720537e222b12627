"""The connection as the journal's statements use it: one of sqlite3, or what takes its place for a database.

Statements are written once, in the SQL that both understand, with the marks of sqlite3. An unqualified table
has the rows of the log that is worked on; with `main.` before it, it has those of all logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Rows(Protocol):
    """What a statement found, or did."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    @property
    def description(self) -> Any:
        """Of each column a sequence that begins with its name."""

    def fetchone(self) -> Any:
        """Return the next row; None: there is none."""

    def fetchall(self) -> list[Any]:
        """Return all other rows."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows."""


class Changed(Protocol):
    """What a statement did that ran for many rows."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""


class Db(Protocol):
    """A connection, within a transaction."""

    def enter(self, log: int, /) -> None:
        """Work on a log from now on; a file has one."""

    def execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ..., /) -> Rows:
        """Run a statement."""

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Changed:
        """Run a statement once for each row of values."""


class InReadTransaction(Protocol):
    """Runs a query in one read transaction, beside a worker or without one. Raises JournalError."""

    def __call__(self, query: Callable[[Db], T], /) -> T:
        """Return what the query returns."""


_SIZES = (32, 8)


class BulkInsert:
    """`INSERT INTO into VALUES row, row, ...`, and what follows behind the rows.

    Each run of a statement opens a cursor for the table and each of its indexes, which costs as much as the
    row.
    """

    def __init__(self, into: str, row: str, behind: str = "") -> None:
        start = f"INSERT INTO {into} VALUES "  # noqa: S608  # constants
        self._one = start + row + behind
        self._many = [(size, start + ", ".join([row] * size) + behind) for size in _SIZES]

    def run(self, db: Db, rows: Iterable[tuple[Any, ...]]) -> int:
        """Insert the rows, each with the values of one row's parameters; return how many are inserted."""
        left = list(rows)
        start = done = 0
        for size, statement in self._many:
            while len(left) - start >= size:
                done += db.execute(statement, list(chain.from_iterable(left[start : start + size]))).rowcount
                start += size
        if start < len(left):
            done += db.executemany(self._one, left[start:]).rowcount
        return done


def each_of(db: Db, next_one: str) -> set[str]:
    """The different words in an index, by a query for the first one behind another: one look for each."""
    found: set[str] = set()
    word: str | None = ""
    while True:
        (word,) = db.execute(next_one, (word,)).fetchone()
        if word is None:
            return found
        found.add(word)
