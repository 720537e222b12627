"""Many rows inserted by one statement.

Each run of a statement opens a cursor for the table and each of its indexes, which costs as much as the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from deliveryd.journal.sql.db import Db

_SIZES = (32, 8)


class BulkInsert:
    """`INSERT INTO into VALUES row, row, ...`, and what follows behind the rows."""

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
