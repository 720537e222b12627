"""The connection as the journal's statements use it: one of sqlite3, or what takes its place for a database.

Statements are written once, in the SQL that both understand, with the marks of sqlite3. An unqualified table
has the rows of the log that is worked on; with `main.` before it, it has those of all logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
