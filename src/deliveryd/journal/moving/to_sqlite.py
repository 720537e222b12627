"""Copies what a journal in PostgreSQL holds into the empty tables of a SQLite file.

The logs of all workers become one: in the order of time, but none of them against its own order. Events that
the service accepted together at one instant, and that follow one another then, are one post.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from deliveryd.journal.moving.progress import Watch, counted_rows
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.outbox import ACCEPTED_AT, AT, PRESENT
from deliveryd.journal.postgresql.schema import LOG_BITS
from deliveryd.journal.postgresql.values import VISIBLE
from deliveryd.journal.schema import KEEP_VALUE

ITERATED = 5_000
"""Rows that are fetched at once."""

_OWN_META = "'format', 'written_since', 'moved', 'moved_by', 'moved_to'"
_TRY = (
    "message_id, key, number, provider, beginning, started_at, ended_at, verdict, provider_id, reason, words"
)
_RECEIPT = "seq, provider, provider_id, reference, delivered, status, reported_at, received_at"
_MESSAGE = (
    "id, settings_id, customer_id, state, taken_at, ended_at, key, beginning, number, tries, doubt,"
    " started_at, accepted_at, provider, provider_id, reason, digest, sent_by, spent, content, variables"
)


def _of(alias: str, columns: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in columns.split(", "))


_COPIES = {
    f"message ({_MESSAGE}, due_at, waits_for, confirm_by, confirm_within, failed_next)": (
        f"SELECT {_of('m', _MESSAGE)}, w.due_at, w.waits_for, a.confirm_by + coalesce(p.unheard, 0),"
        " a.confirm_within,"
        " a.failed_next::int"
        " FROM message m LEFT JOIN waiting w ON w.id = m.id LEFT JOIN awaited a ON a.id = m.id"
        " LEFT JOIN provider p ON p.name = a.provider"
        f" WHERE {VISIBLE} ORDER BY m.id"
    ),
    f"unaccepted ({_TRY})": (
        f"SELECT {_of('u', _TRY)} FROM unaccepted u JOIN message m ON m.id = u.message_id AND m.day = u.day"
        f" WHERE {VISIBLE} ORDER BY u.message_id, u.key, u.number"
    ),
    f"receipt ({_RECEIPT}, message_id)": (
        f"SELECT {_of('r', _RECEIPT)}, r.message_id FROM receipt r"
        f" JOIN message m ON m.id = r.message_id AND m.day = r.day WHERE {VISIBLE} ORDER BY r.seq"
    ),
    f"receipt ({_RECEIPT}, dropped_at)": f"SELECT {_RECEIPT}, dropped_at FROM unmatched ORDER BY seq",
    **{
        f"{table} ({columns})": f"SELECT {columns} FROM {table}"
        for table, columns in (
            ("malformed", "digest, message_id, raw, reason, first_at, last_at, times, dropped_at"),
            ("unread", "digest, provider, raw, reason, first_at, last_at, times, dropped_at"),
            ("used_token", "token, body, until"),
            ("stopped", "channel, digest, at, lifted_at, reason, source"),
            ("pause", 'kind, key, since, until, "user", caller, reason'),
            ("decision", 'seq, message_id, at, verb, kind, key, "user", caller, reason'),
            ("tombstone", "id, dequeued_at, at, status, rest"),
            ("beginning", "id, count, doubt"),
        )
    },
    "provider (name, reported_at, passed, silent, renewing, overdue_until)": (
        "SELECT name, reported_at, passed, silent, renewing + unheard, overdue_until FROM provider"
    ),
}
# What waits in inboxes comes last, in its order: new events, and those that are to be reported once more.
_EVENTS = f"""
SELECT seq, first_seq, waits, accepted_at, message_id, status, body, refused_at, refused, refusals, dropped_at
FROM (SELECT e.seq, e.first_seq, e.day, e.message_id, e.status, e.body, e.refused_at, e.refused, e.refusals,
        e.dropped_at, coalesce(e.seq > w.settled, false) AS waits, 0 AS inbox,
        max({AT}) OVER (PARTITION BY e.seq >> {LOG_BITS} ORDER BY e.seq) AS latest,
        CASE WHEN e.refused_at IS NULL THEN {ACCEPTED_AT} END AS accepted_at
    FROM event e LEFT JOIN worker w ON w.id = e.seq >> {LOG_BITS}
    WHERE e.seq NOT IN (SELECT moved FROM inbox WHERE moved IS NOT NULL)
    UNION ALL SELECT coalesce(i.moved, -i.seq), coalesce(e.first_seq, e.seq), e.day, i.message_id,
        coalesce(i.status, e.status), coalesce(i.body, e.body), NULL, NULL, e.refusals, e.dropped_at, true,
        i.seq, NULL, NULL
    FROM inbox i LEFT JOIN event e ON e.seq = i.moved) AS e
WHERE waits OR {PRESENT} ORDER BY waits, inbox, latest, seq
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
_COUNTED = {
    "batches_lost": "lost",
    "batch_lost_at": "lost_at",
    "listened": "listened",
    "latest_at": "latest_at",
}
"""What the database keeps among its own values, and the file's log counts."""

_SUMS = "SELECT sum(taken)::int8, sum(pruned)::int8, sum(forgotten)::int8 FROM worker"


def fill_file(source: Db, db: sqlite3.Connection, watch: Watch) -> None:
    """Copy all of it, in the transactions that are open on both sides. Raises errors of both drivers."""
    for target, query in _COPIES.items():
        table, marks = target.partition(" ")[0], ", ".join("?" * (target.count(",") + 1))
        rows = counted_rows(_rows(source, query), table, watch)
        db.executemany(f"INSERT INTO {target} VALUES ({marks})", rows)
    settled = _copy_events(source, db, watch)
    sums = source.execute(_SUMS).fetchone() or (0, 0, 0)
    db.execute("UPDATE log SET settled = ?, taken = ?, pruned = ?, forgotten = ?", (settled, *sums))
    query = f"SELECT key, value FROM meta WHERE key NOT IN ({_OWN_META})"
    values: dict[str, str] = dict(source.execute(query).fetchall())
    for key, column in _COUNTED.items():
        if (value := values.pop(key, None)) is not None:
            db.execute(f"UPDATE log SET {column} = ?", (int(value),))  # a constant
    db.executemany(KEEP_VALUE, values.items())


def _rows(source: Db, query: str) -> Iterator[Sequence[Any]]:
    with source.cursor(name="move") as cursor:
        cursor.itersize = ITERATED
        yield from cursor.execute(query)


def _copy_events(source: Db, db: sqlite3.Connection, watch: Watch) -> int:
    """Copy the logs as one, and their posts; return how many events are settled."""
    db.execute(_NUMBERS)
    posts = _Posts(db)
    settled = 0

    def numbered() -> Iterator[Sequence[Any]]:
        nonlocal settled
        for new, row in enumerate(counted_rows(_rows(source, _EVENTS), "event", watch), 1):
            old, first, waits, accepted_at, *rest = row
            db.execute("INSERT INTO renumbered VALUES (?, ?, ?)", (old, new, first))
            posts.add(new, accepted_at)
            if not waits:
                settled = new
            yield new, *rest

    for row in numbered():
        db.execute(_PUT, row)
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
