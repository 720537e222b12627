"""Copies what one journal holds into the empty tables of one of the other kind.

A file becomes the first log of a database. Nobody has that log: the first worker that starts takes it.
The logs of a database become one file. Events are in the order of time there, but none of them against its
own log's order. Those that the service accepted together at one instant, and that follow one another then,
are one post.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from deliveryd.errors import JournalUnusable
from deliveryd.journal.log import LOG_BITS
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.postgresql.database import plain
from deliveryd.journal.postgresql.schema import OF_LOG
from deliveryd.journal.sql.outbox import ACCEPTED_AT, AT
from deliveryd.journal.sql.schema import KEEP_VALUE

OWN_META = frozenset({"moved_by", "moved_to", "moved", "format", "written_since", "clock"})
"""The values of a side that aren't the journal's."""

NUMBERS = {"event": ("seq", "first_seq"), "post": ("last", "first")}
"""The columns that are numbers of events."""

FIRST_LOG = 1
FIRST_NUMBER = FIRST_LOG << LOG_BITS
"""The log in a database that a file becomes, and the number that its events follow there."""

_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY rowid"


def tables_of(file: sqlite3.Connection) -> Sequence[str]:
    """The names of all tables, but for the log's own row and the journal's own values."""
    return [name for (name,) in file.execute(_TABLES) if name not in ("log", "meta")]


def columns_of(file: sqlite3.Connection, table: str) -> Sequence[str]:
    """The columns of a table that hold something of their own."""
    return [row[1] for row in file.execute(f"PRAGMA table_info({table})")]


def named(columns: Sequence[str]) -> str:
    """Columns as SQL."""
    return ", ".join(f'"{column}"' for column in columns)


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


_KEEP = """
INSERT INTO main.meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""
_SET_NUMBERS = """
SELECT
    setval(pg_get_serial_sequence('main.receipt', 'seq'), coalesce((SELECT max(seq) FROM main.receipt), 1)),
    setval(pg_get_serial_sequence('main.decision', 'seq'), coalesce((SELECT max(seq) FROM main.decision), 1))
"""


def fill_database(source: sqlite3.Connection, db: Connected, watch: Watch) -> None:
    """Copy all of it, in the transactions that are open on both sides. Raises errors of both drivers."""
    for table in tables_of(source):
        _copy_table(source, db, table, watch)
    columns = columns_of(source, "log")
    row = dict(zip(columns, source.execute(f"SELECT {named(columns)} FROM log").fetchone(), strict=True))
    row |= {"number": FIRST_LOG, "settled": FIRST_NUMBER + row["settled"]}
    marks = ", ".join(["%s"] * len(columns))
    db.execute(f"INSERT INTO main.log ({named(columns)}) VALUES ({marks})".encode(), list(row.values()))
    for key, value in source.execute("SELECT key, CAST(value AS TEXT) FROM meta"):
        if key not in OWN_META:
            db.execute(_KEEP, (key, value))
    db.execute(_SET_NUMBERS)
    db.execute("ANALYZE")


def _copy_table(source: sqlite3.Connection, db: Connected, table: str, watch: Watch) -> None:
    columns = columns_of(source, table)
    query = f"SELECT {', '.join(_of_file(table, each) for each in columns)} FROM {table}"
    (total,) = source.execute(f"SELECT count(*) FROM {table}").fetchone()
    rows: Iterable[Sequence[Any]] = counted_rows(source.execute(query), table, watch, total)
    into = named([*columns, "log"] if table in OF_LOG else columns)
    log = (FIRST_LOG,) if table in OF_LOG else ()
    copy_in = f"COPY main.{table} ({into}) FROM STDIN".encode()
    db.execute(f"ALTER TABLE main.{table} DISABLE TRIGGER USER".encode())  # nobody watches it yet
    with db.cursor() as cursor, cursor.copy(copy_in) as copy:
        for row in rows:
            copy.write_row([*map(plain, row), *log])
    db.execute(f"ALTER TABLE main.{table} ENABLE TRIGGER USER".encode())


def _of_file(table: str, column: str) -> str:
    return f'"{column}" + {FIRST_NUMBER}' if column in NUMBERS.get(table, ()) else f'"{column}"'


ITERATED = 5_000
"""Rows that are fetched at once."""

_BY_ITSELF = frozenset({"event", "post", "provider"})
"""Tables whose rows aren't copied as they are."""

_LATER = "(SELECT max(listened) FROM main.log) - l.listened"
"""SQL for how much the listening time of all is ahead of that of a log."""

_PROVIDERS = f"""
SELECT p.name, max(p.reported_at), max(p.passed), max(p.silent), max(p.renewing + {_LATER}),
    min(p.overdue_until)
FROM main.provider p JOIN main.log l ON l.number = p.log GROUP BY p.name
"""
_LOG = """
SELECT coalesce(sum(taken), 0)::int8, coalesce(sum(pruned), 0)::int8, coalesce(sum(forgotten), 0)::int8,
    coalesce(sum(lost), 0)::int8, max(lost_at),
    coalesce(max(listened), 0), coalesce(max(latest_at), 0) FROM main.log
"""
_EVENTS = f"""
SELECT seq, first_seq, seq > (SELECT settled FROM main.log WHERE number = event.seq >> {LOG_BITS}) AS waits,
    CASE WHEN refused_at IS NULL THEN {ACCEPTED_AT} END, message_id, status, body, refused_at, refused,
    refusals, dropped_at
FROM main.event
ORDER BY waits, max({AT}) OVER (PARTITION BY seq >> {LOG_BITS} ORDER BY seq), seq
"""
_PUT = """
INSERT INTO event (seq, message_id, status, body, refused_at, refused, refusals, dropped_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_NUMBERS = "CREATE TEMP TABLE renumbered (old INTEGER PRIMARY KEY, new INTEGER NOT NULL, first INTEGER)"
_KEEP_FIRST = f"""
UPDATE event SET first_seq = coalesce((SELECT before.new FROM renumbered before
    WHERE before.old <= r.first AND before.old >> {LOG_BITS} = r.first >> {LOG_BITS}
    ORDER BY before.old DESC LIMIT 1), 0)
FROM renumbered r WHERE r.first IS NOT NULL AND event.seq = r.new
"""


def fill_file(source: Connected, db: sqlite3.Connection, watch: Watch) -> None:
    """Copy all of it, in the transactions that are open on both sides.

    Raises JournalUnusable where something is in an inbox, and errors of both drivers.
    """
    if source.execute("SELECT 1 FROM main.inbox WHERE answer IS NULL LIMIT 1").fetchone():
        raise JournalUnusable(
            "workers left reports or orders for one another (inbox): start one worker, stop it when it is"
            " ready, and repeat the move"
        )
    for table in tables_of(db):
        if table not in _BY_ITSELF:
            columns = columns_of(db, table)
            query = (
                f"SELECT {', '.join(_of_database(table, each) for each in columns)} FROM main.{table} AS t"
            )
            if table == "message":
                query += " JOIN main.log l ON l.number = t.log"
            _put(db, table, columns, counted_rows(_rows(source, query), table, watch))
    _put(db, "provider", columns_of(db, "provider"), _rows(source, _PROVIDERS))
    settled = _copy_events(source, db, watch)
    sums = source.execute(_LOG).fetchone() or ()
    db.execute(
        "UPDATE log SET settled = ?, taken = ?, pruned = ?, forgotten = ?, lost = ?, lost_at = ?,"
        " listened = ?, latest_at = ?",
        (settled, *sums),
    )
    values = source.execute("SELECT key, value FROM main.meta").fetchall()
    db.executemany(KEEP_VALUE, [row for row in values if row[0] not in OWN_META])


def _of_database(table: str, column: str) -> str:
    if (table, column) == ("message", "confirm_by"):
        return f"t.confirm_by + {_LATER}"
    return f't."{column}"'


def _put(db: sqlite3.Connection, table: str, columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> None:
    marks = ", ".join("?" * len(columns))
    db.executemany(f"INSERT INTO {table} ({named(columns)}) VALUES ({marks})", rows)


def _rows(source: Connected, query: str) -> Iterator[Sequence[Any]]:
    with source.cursor(name="move") as cursor:
        cursor.itersize = ITERATED
        yield from cursor.execute(query.encode())


def _copy_events(source: Connected, db: sqlite3.Connection, watch: Watch) -> int:
    """Copy the logs as one, and their posts; return how many events are settled."""
    db.execute(_NUMBERS)
    posts = _Posts(db)
    settled = 0
    for new, row in enumerate(counted_rows(_rows(source, _EVENTS), "event", watch), 1):
        old, first, waits, accepted_at, *rest = row
        db.execute("INSERT INTO renumbered VALUES (?, ?, ?)", (old, new, first))
        posts.add(new, accepted_at)
        if not waits:
            settled = new
        db.execute(_PUT, (new, *rest))
    posts.add(0, None)
    db.execute(_KEEP_FIRST)
    db.execute("DROP TABLE renumbered")
    return settled


class _Posts:
    """Posts, as events come in the order of their numbers with the instant at which each was accepted."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._first = 0
        self._last = 0
        self._at: int | None = None

    def add(self, seq: int, at: int | None) -> None:
        """Add an event; None: it wasn't accepted, and ends what may be a post."""
        if at != self._at:
            if self._at is not None:
                self._db.execute("INSERT INTO post VALUES (?, ?, ?)", (self._last, self._first, self._at))
            self._first, self._at = seq, at
        self._last = seq
