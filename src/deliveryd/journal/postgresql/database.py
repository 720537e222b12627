"""A connection to PostgreSQL that takes the journal's statements, as one of sqlite3 does.

They are written with the marks of sqlite3 (see `sql.db`). What differs are the marks, sets that are given as
JSON arrays, and the order of joins. What runs for many rows is one statement here, with an array for each
parameter: row by row it costs twenty times as much.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Any, NamedTuple, TypeVar

import orjson
import psycopg

from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.rows import to_text

T = TypeVar("T")

_MARK = r"\?(\d*)"
_TEXT = "'(?:[^']|'')*'"
_INDEX = r" INDEXED BY \w+"
_WORDS = re.compile(
    rf"{_TEXT}|%|{_INDEX}"  # a pattern
    rf"|IN \(SELECT CAST\(value AS BIGINT\) FROM json_each\(\?(?P<ids>\d*)\)\)"
    rf"|json_each\(\?(?P<set>\d*)\)(?P<alias> AS \w+)?"
    rf"|\?(?P<one>\d*)"
)
_JOINED = re.compile(r"CROSS JOIN (\w+)\s+WHERE (.*?)(?= LIMIT|$)", re.DOTALL)
_LATERAL = r"CROSS JOIN LATERAL (SELECT \1.* FROM \1 WHERE \2 OFFSET 0) AS \1"
"""SQLite joins in the order that is written. PostgreSQL begins with a table that is small when it plans."""

_SEVERAL = re.compile(r"(INSERT INTO \w+ \([^)]*\) VALUES )(\([^)]*\))(?:, \2)+( ON .*)?")
_INSERT = re.compile(
    r"(INSERT INTO \w+\s+\((?P<columns>[^)]*)\))\s+VALUES (?P<row>\(.*?\))(?P<rest>(?:\s+ON .*)?)", re.DOTALL
)
_COMPARED = re.compile(r"\w+ = \$(\d+)")


class PreparedStatement(NamedTuple):
    """A statement with psycopg's marks; `places`: each one's value, and whether it is a JSON array."""

    text: bytes
    places: Sequence[tuple[int, bool]]


class ForRows(NamedTuple):
    """A statement with an array for each parameter.

    `places`: the values of a row that the arrays hold; `keys`: those that no two rows may share.
    """

    text: bytes
    places: Sequence[int]
    keys: Sequence[int]


class SeveralRows(NamedTuple):
    """A statement with values of several rows: that for one row, and how many values it has."""

    one: str
    width: int


@cache
def prepared(sql: str) -> PreparedStatement:
    """Return a statement of sqlite3's as one of psycopg's; a set of ids or words is an array there."""
    places: list[tuple[int, bool]] = []

    def replaced(found: re.Match[str]) -> str:
        numbers = found.groupdict()
        number = next((numbers[kind] for kind in ("ids", "set", "one") if numbers[kind] is not None), None)
        if number is None:
            return "" if found[0].startswith(" ") else found[0].replace("%", "%%")
        places.append((int(number) - 1 if number else len(places), numbers["one"] is None))
        if numbers["ids"] is not None:
            return "= ANY (%s::bigint[])"
        if numbers["set"] is not None:
            return f"unnest(%s::text[]){found['alias'] or ' AS given'}(value)"
        return "%s"

    return PreparedStatement(_WORDS.sub(replaced, _JOINED.sub(_LATERAL, sql)).encode(), places)


@cache
def of_several_rows(sql: str) -> SeveralRows | None:
    """Return what a statement does for each of its rows; None: it has values of one row, or none."""
    found = _SEVERAL.fullmatch(sql)
    return None if found is None else SeveralRows(found[1] + found[2] + (found[3] or ""), found[2].count("?"))


def numbered(sql: str) -> tuple[str, Sequence[int]]:
    """Return a statement with PostgreSQL's own marks, and the place of each one's value."""
    places: list[int] = []
    marks = 0

    def mark(found: re.Match[str]) -> str:
        nonlocal marks
        if not found[0].startswith("?"):
            return "" if found[0].startswith(" ") else found[0]
        place = int(found[1]) - 1 if found[1] else marks
        marks += 1
        if place not in places:
            places.append(place)
        return f"${places.index(place) + 1}"

    return re.sub(rf"{_MARK}|{_TEXT}|{_INDEX}", mark, sql), places


def for_rows(sql: str, types: Sequence[str]) -> ForRows:
    """Return a statement for many rows at once; `types` are those of what `numbered` marks."""
    text, places = numbered(sql.strip())
    arrays = ", ".join(f"%s::{kind}[]" for kind in types)
    names = ", ".join(f"p{number}" for number in range(1, len(types) + 1))
    rows = f"unnest({arrays}) WITH ORDINALITY AS row ({names}, nth)"
    if insert := _INSERT.fullmatch(text):
        columns = re.findall(r"\w+", insert["columns"])
        values = insert["row"][1:-1].split(", ")
        rest = insert["rest"]
        for column, value in zip(columns, values, strict=True):
            rest = rest.replace(value, f"excluded.{column}") if value.startswith("$") else rest
        conflict = re.match(r"\s+ON CONFLICT \((.*?)\)", rest)
        keys = [columns.index(each) for each in conflict[1].split(", ")] if conflict is not None else []
        text = f"{insert[1]} SELECT {', '.join(values)} FROM {rows} ORDER BY nth{rest}"  # constants
    elif text.startswith("INSERT"):
        keys = []
        text = text.replace(" FROM message", f" FROM {rows} CROSS JOIN message", 1)
    else:
        where = _outermost(text, "WHERE")
        keys = [places[int(number) - 1] for number in _COMPARED.findall(text[where:])]
        joined = "USING" if text.startswith("DELETE") else "FROM"
        text = f"{text[:where]}{joined} {rows} {text[where:]}"
    return ForRows(re.sub(r"\$(\d+)", r"row.p\1", text).encode(), places, keys)


def _outermost(sql: str, word: str) -> int:
    """Where a word stands last outside of all parentheses."""
    depth, found = 0, len(sql)
    for match in re.finditer(rf"[()]|\b{word}\b", sql):
        if match[0] == word:
            found = found if depth else match.start()
        else:
            depth += 1 if match[0] == "(" else -1
    return found


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
    """A value in a type that PostgreSQL has; text can hold neither a NUL nor an unpaired surrogate."""
    if isinstance(value, str):
        return str(to_text(value)).replace("\0", "\\x00")
    return int(value) if isinstance(value, int) else value


def _elements(array: str) -> list[str]:
    """The elements of a JSON array, as text."""
    return [plain(str(each)) for each in orjson.loads(array)]


class Snapshots:
    """Reads of a database, each on one snapshot, which holds up nobody who writes.

    A connection is kept for the next read; several threads have several.
    """

    def __init__(self, connect: Callable[[], Connected]) -> None:
        self._connect = connect
        self._kept: list[Connected] = []
        weakref.finalize(self, _close_all, self._kept)

    def __call__(self, query: Callable[[Database], T]) -> T:
        """Run a query on all logs. Raises psycopg.Error, and what connecting raises."""
        with suppress(IndexError, psycopg.OperationalError):  # none is kept, or the server went away
            return self._read_on(self._kept.pop(), query)
        return self._read_on(self._connect(), query)

    def _read_on(self, db: Connected, query: Callable[[Database], T]) -> T:
        try:
            db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with db.transaction():
                database = Database(db)
                result = query(database)
                database.look_at_all()
        except BaseException:
            db.close()
            raise
        self._kept.append(db)
        return result

    def close(self) -> None:
        """Close the connections that are kept."""
        _close_all(self._kept)


def _close_all(connections: list[Connected]) -> None:
    while connections:
        connections.pop().close()
