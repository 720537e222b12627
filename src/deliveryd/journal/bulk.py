"""Many rows inserted by one statement.

Each run of a statement opens a cursor for the table and each of its indexes, which costs as much as the row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import chain
from typing import Any

_SIZES = (32, 8)


class BulkInsert:
    """`INSERT INTO into VALUES row, row, ...`."""

    def __init__(self, into: str, row: str) -> None:
        start = f"INSERT INTO {into} VALUES "  # noqa: S608  # constants
        self._one = start + row
        self._many = [(size, start + ", ".join([row] * size)) for size in _SIZES]

    def run(self, db: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert the rows, each with the values of one row's parameters."""
        left = list(rows)
        start = 0
        for size, statement in self._many:
            while len(left) - start >= size:
                db.execute(statement, list(chain.from_iterable(left[start : start + size])))
                start += size
        if start < len(left):
            db.executemany(self._one, left[start:])
