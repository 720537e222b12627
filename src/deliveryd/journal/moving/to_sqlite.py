"""Copies what a journal in PostgreSQL holds into the empty tables of a SQLite file: its logs become one.

Events are in the order of time, but none of them against its own log's order. Those that the service accepted
together at one instant, and that follow one another then, are one post.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from deliveryd.errors import JournalUnusable
from deliveryd.journal.log import LOG_BITS
from deliveryd.journal.moving.progress import Watch, counted_rows
from deliveryd.journal.moving.tables import OWN_META, columns_of, named, tables_of
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.sql.outbox import ACCEPTED_AT, AT
from deliveryd.journal.sql.schema import KEEP_VALUE

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
