"""How far a move came."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

ROWS_BETWEEN_REPORTS = 5_000
"""Rows between two reports."""


class MoveProgress(NamedTuple):
    """Rows that were copied of a table; `total` None: it isn't known."""

    table: str
    done: int
    total: int | None = None

    def text(self) -> str:
        """Return it as text."""
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{self.table}: {self.done:,}{of}"


Watch = Callable[[MoveProgress], None]


def counted_rows(rows: Iterable[Any], table: str, watch: Watch, total: int | None = None) -> Iterator[Any]:
    """Hand rows on, and tell how many they were so far."""
    for done, row in enumerate(rows, 1):
        if done % ROWS_BETWEEN_REPORTS == 0:
            watch(MoveProgress(table, done, total))
        yield row
