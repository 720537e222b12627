"""A connection to PostgreSQL that takes the journal's statements, as one of sqlite3 does.

What runs for many rows is one statement here, with an array for each parameter: row by row it costs twenty
times as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import orjson

from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.postgresql.dialect import ForRows, for_rows, numbered, of_several_rows, prepared
from deliveryd.journal.rows import to_text

_ASK = """
PREPARE {0} AS {1};
SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = '{0}';
DEALLOCATE {0}
"""
_numbers = count(1)
_for_rows: dict[str, ForRows] = {}  # of all connections: a column's type never changes
_ENTER = "SELECT set_config('search_path', 'own, main', false), set_config('deliveryd.log', %s, false)"
_LOOK_AT_ALL = "SELECT set_config('search_path', 'main', false)"


class RowsChanged(NamedTuple):
    """What a statement for many rows did."""

    rowcount: int


class Database:
    """What takes the place of a connection of sqlite3; see `journal.db`."""

    def __init__(self, connection: Connected) -> None:
        self.connection = connection
        self._log: int | None = None

    def enter(self, log: int) -> None:
        """Work on a log from now on."""
        if log != self._log:
            self.connection.execute(_ENTER, (str(log),))
            self._log = log

    def look_at_all(self) -> None:
        """Work on all logs from now on."""
        self.connection.execute(_LOOK_AT_ALL)
        self._log = None

    def forget_log(self) -> None:
        """A transaction was rolled back, and with it perhaps which log is worked on."""
        self._log = None

    def execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = (), /) -> Any:
        """Run a statement; return what has its rows and their number."""
        if isinstance(values, Mapping):
            raise TypeError("marks have no names here")
        if several := of_several_rows(sql):
            starts = range(0, len(values), several.width)
            return self.executemany(several.one, [values[at : at + several.width] for at in starts])
        text, places = prepared(sql)
        given = [_elements(values[place]) if is_set else plain(values[place]) for place, is_set in places]
        return self.connection.execute(text, given)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> RowsChanged:
        """Run a statement for many rows; those with the same key one after another."""
        left = list(rows)
        if len(left) == 1:
            return RowsChanged(self.execute(sql, left[0]).rowcount)
        done = 0
        while left:
            statement = _for_rows.get(sql) or self._prepare(sql)
            now, left = _apart(left, statement.keys)
            arrays = [[plain(row[place]) for row in now] for place in statement.places]
            done += self.connection.execute(statement.text, arrays).rowcount
        return RowsChanged(done)

    def _prepare(self, sql: str) -> ForRows:
        """Ask for the types of a statement's parameters; keep it for many rows."""
        text, _ = numbered(sql)
        name = f"asked{next(_numbers)}"  # one that was cancelled may still be there
        asked = self.connection.execute(_ASK.format(name, text).encode(), prepare=False)
        asked.nextset()
        (types,) = asked.fetchone() or ((),)
        return _for_rows.setdefault(sql, for_rows(sql, types))


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


def plain(value: Any) -> Any:
    """A value in a type that PostgreSQL knows; text can hold neither a NUL nor an unpaired surrogate."""
    if isinstance(value, str):
        return str(to_text(value)).replace("\0", "\\x00")
    return int(value) if isinstance(value, int) else value


def _elements(array: str) -> list[str]:
    """The elements of a JSON array, as text."""
    return [plain(str(each)) for each in orjson.loads(array)]
