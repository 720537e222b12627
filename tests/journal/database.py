"""A connection to PostgreSQL that takes the statements of the embedded journal, as one of sqlite3 does.

What runs for many rows is one statement here, with an array for each parameter: row by row it costs twenty
times as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson
from psycopg.pq import ExecStatus

from deliveryd.journal.postgresql.connection import Db
from journal.dialect import ForRows, for_rows, numbered, of_several_rows, prepared

_TYPES = {16: "boolean", 17: "bytea", 20: "bigint", 21: "smallint", 23: "integer", 25: "text"}
"""By PostgreSQL's numbers."""


class Rows(NamedTuple):
    """What a statement for many rows did."""

    rowcount: int


class Database:
    """What takes the place of a connection of sqlite3."""

    def __init__(self, connection: Db) -> None:
        self.connection = connection
        self._for_rows: dict[str, ForRows] = {}

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Run a statement; return what has its rows and their number."""
        if several := of_several_rows(sql):
            starts = range(0, len(values), several.width)
            return self.executemany(several.one, [values[at : at + several.width] for at in starts])
        text, places = prepared(sql)
        given = [_elements(values[place]) if is_set else _plain(values[place]) for place, is_set in places]
        return self.connection.execute(text.encode(), given)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> Rows:
        """Run a statement for many rows; those with the same key one after another."""
        left = list(rows)
        if len(left) == 1:
            return Rows(self.execute(sql, left[0]).rowcount)
        done = 0
        while left:
            statement = self._for_rows.get(sql) or self._prepare(sql)
            now, left = _apart(left, statement.keys)
            arrays = [[_plain(row[place]) for row in now] for place in statement.places]
            done += self.connection.execute(statement.text.encode(), arrays).rowcount
        return Rows(done)

    def _prepare(self, sql: str) -> ForRows:
        """Ask for the types of a statement's parameters; keep it for many rows."""
        text, places = numbered(sql)
        server = self.connection.pgconn
        done = server.prepare(b"asked", text.encode())
        if done.status != ExecStatus.COMMAND_OK:
            raise ValueError(f"{done.error_message.decode()}: {text}")
        asked = server.describe_prepared(b"asked")
        server.exec_(b"DEALLOCATE asked")
        types = [_TYPES[asked.param_type(place)] for place in range(len(places))]
        return self._for_rows.setdefault(sql, for_rows(sql, types))

    def close(self) -> None:
        """Close it."""
        self.connection.close()


def _apart(rows: list[Sequence[Any]], keys: Sequence[int]) -> tuple[list[Sequence[Any]], list[Sequence[Any]]]:
    """Return the first row of each key, and the others."""
    if not keys:
        return rows, []
    seen: set[tuple[Any, ...]] = set()
    first: list[Sequence[Any]] = []
    others: list[Sequence[Any]] = []
    for row in rows:
        key = tuple([row[place] for place in keys])
        (others if key in seen else first).append(row)
        seen.add(key)
    return first, others


def _plain(value: Any) -> Any:
    """A value in a type that PostgreSQL knows; text can hold no NUL there."""
    if isinstance(value, str):
        return str(value).replace("\0", "\\x00")
    return int(value) if isinstance(value, int) else value


def _elements(array: str) -> list[str]:
    """The elements of a JSON array, as text."""
    return [_plain(str(each)) for each in orjson.loads(array)]
