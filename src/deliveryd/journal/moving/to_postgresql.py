"""Copies what a SQLite journal holds into the empty tables of one in PostgreSQL.

All that is under way belongs to one worker that has ended: the first that starts adopts it. Events keep their
order and what is settled, as the log of that worker.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from deliveryd.journal.moving.progress import Watch, counted_rows
from deliveryd.journal.outbox import WATERMARK
from deliveryd.journal.postgresql.asking_anew import ask_anew
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.schema import DAY, FORMAT, LOG_BITS, day_of, make_day
from deliveryd.journal.postgresql.values import plain
from deliveryd.journal.receipt_decisions import referred_by
from deliveryd.states import State

GONE = -1
"""The day of messages of which only a tombstone is kept: none has a partition that old."""

NAME = "moved from SQLite"

_OWN_META = "'moved_by', 'moved_to'"
_COUNTED = """
SELECT 'batches_lost', CAST(lost AS TEXT) FROM log WHERE lost > 0
UNION ALL SELECT 'batch_lost_at', CAST(lost_at AS TEXT) FROM log WHERE lost > 0
UNION ALL SELECT 'listened', CAST(listened AS TEXT) FROM log WHERE listened > 0
UNION ALL SELECT 'latest_at', CAST(latest_at AS TEXT) FROM log WHERE latest_at > 0
"""
"""What the file's log counts, and the database keeps among its own values."""

_DAY = f"max(message.taken_at / {DAY}, 1)"
_IN_HAND = f"{State.TAKEN:d}, {State.READY:d}, {State.SENDING:d}"
_MESSAGE = (
    "id, settings_id, customer_id, taken_at, started_at, ended_at, accepted_at, state, key, number, tries,"
    " beginning, doubt, provider, provider_id, reason, digest, sent_by, spent, content, variables"
)
_TRY = "key, number, provider, beginning, started_at, ended_at, verdict, provider_id, reason, words"
_RECEIPT = "reported_at, received_at, delivered, provider, provider_id, status, reference"


class _TableCopy(NamedTuple):
    """Rows of a table in PostgreSQL, its columns, and the query in SQLite that gives them."""

    table: str
    columns: str
    query: str


_MESSAGES = _TableCopy(
    "message",
    f"day, log, owner, {_MESSAGE}",
    f"SELECT {_DAY}, :worker, CASE WHEN state IN ({_IN_HAND}) THEN :worker"
    f" WHEN state = {State.IN_DOUBT:d} THEN 0 END, {_MESSAGE} FROM message",
)
_COPIES = (
    _MESSAGES,
    _TableCopy(
        "seen",
        "id, day",
        f"SELECT id, {_DAY} FROM message UNION ALL SELECT id, {GONE} FROM tombstone"
        " WHERE id NOT IN (SELECT id FROM message)",
    ),
    _TableCopy(
        "waiting",
        "id, provider, doubt, due_at, waits_for",
        f"SELECT id, provider, doubt, due_at, waits_for FROM message WHERE state = {State.WAITING:d}",
    ),
    _TableCopy(
        "awaited",
        "id, provider, accepted_at, confirm_by, confirm_within, failed_next",
        "SELECT id, provider, accepted_at, confirm_by, confirm_within, failed_next FROM message"
        f" WHERE state = {State.SENT:d} AND failed_next IS NOT NULL",
    ),
    _TableCopy(
        "unaccepted",
        f"message_id, day, {_TRY}",
        f"SELECT message_id, {_DAY}, {', '.join(f'u.{name}' for name in _TRY.split(', '))}"
        " FROM unaccepted u JOIN message ON message.id = u.message_id",
    ),
    _TableCopy(
        "event",
        "seq, day, first_seq, message_id, refused_at, dropped_at, refusals, status, body, refused",
        f"SELECT :log + seq, coalesce({_DAY}, :today), :log + first_seq, message_id, refused_at, dropped_at,"
        " refusals, status, body, refused FROM event LEFT JOIN message ON message.id = event.message_id",
    ),
    _TableCopy("post", "last, first, at", "SELECT :log + last, :log + first, at FROM post"),
    _TableCopy(
        "receipt",
        f"seq, message_id, day, {_RECEIPT}",
        f"SELECT seq, message_id, {_DAY}, {', '.join(f'r.{name}' for name in _RECEIPT.split(', '))}"
        " FROM receipt r JOIN message ON message.id = r.message_id",
    ),
    _TableCopy(
        "malformed",
        "digest, message_id, first_at, last_at, times, dropped_at, reason, raw",
        "SELECT digest, message_id, first_at, last_at, times, dropped_at, reason, raw FROM malformed",
    ),
    _TableCopy(
        "unread",
        "digest, first_at, last_at, times, dropped_at, provider, reason, raw",
        "SELECT digest, first_at, last_at, times, dropped_at, provider, reason, raw FROM unread",
    ),
    _TableCopy("used_token", "token, body, until", "SELECT token, body, until FROM used_token"),
    _TableCopy(
        "stopped",
        "channel, digest, at, lifted_at, reason, source, change",
        "SELECT channel, digest, at, lifted_at, reason, source, 0 FROM stopped",
    ),
    _TableCopy(
        "pause",
        'kind, key, since, until, "user", caller, reason',
        "SELECT kind, key, since, until, user, caller, reason FROM pause",
    ),
    _TableCopy(
        "decision",
        'seq, message_id, at, verb, kind, key, "user", caller, reason',
        "SELECT seq, message_id, at, verb, kind, key, user, caller, reason FROM decision",
    ),
    _TableCopy(
        "tombstone",
        "id, dequeued_at, at, status, rest",
        "SELECT id, dequeued_at, at, status, rest FROM tombstone",
    ),
    _TableCopy("beginning", "id, count, doubt", "SELECT id, count, doubt FROM beginning"),
    _TableCopy(
        "provider",
        "name, reported_at, passed, silent, renewing, overdue_until",
        "SELECT name, reported_at, passed, silent, renewing, overdue_until FROM provider",
    ),
)
_UNMATCHED = f"SELECT seq, dropped_at, {_RECEIPT} FROM receipt WHERE message_id IS NULL"
_BEGIN = """
INSERT INTO worker (name, began_at, format, lease, ended, taken, pruned, forgotten)
VALUES (%s, %s, %s, 0, 'released', %s, %s, %s) RETURNING id
"""
_SET_NUMBERS = """
SELECT setval('receipt_seq', greatest(coalesce((SELECT max(seq) FROM receipt), 1),
        coalesce((SELECT max(seq) FROM unmatched), 1))),
    setval(pg_get_serial_sequence('decision', 'seq'), coalesce((SELECT max(seq) FROM decision), 1))
"""


def fill_database(source: sqlite3.Connection, db: Db, now: int, watch: Watch) -> None:
    """Copy all of it, in the transactions that are open on both sides. Raises errors of both drivers."""
    worker = _begin_log(source, db, now)
    today = _make_days(source, db, now)
    values = {"worker": worker, "log": worker << LOG_BITS, "today": today}
    for each in _COPIES:
        (total,) = source.execute(f"SELECT count(*) FROM ({each.query})", values).fetchone()
        rows = counted_rows(source.execute(each.query, values), each.table, watch, total)
        _copy(db, each.table, each.columns, rows)
    unmatched = counted_rows(source.execute(_UNMATCHED), "unmatched", watch)
    namespace = _copy_meta(source, db)
    _copy(db, "unmatched", f"seq, dropped_at, {_RECEIPT}, named", _named(unmatched, namespace))
    db.execute(_SET_NUMBERS)
    ask_anew(db)
    db.execute("ANALYZE")


def _begin_log(source: sqlite3.Connection, db: Db, now: int) -> int:
    """Make the worker that had all of it until now; return its number."""
    (settled,) = source.execute(f"SELECT {WATERMARK}").fetchone()
    sums = source.execute("SELECT taken, pruned, forgotten FROM log").fetchone()
    (worker,) = db.execute(_BEGIN, (NAME, now, FORMAT, *sums)).fetchone() or (0,)
    log = worker << LOG_BITS
    db.execute("UPDATE worker SET holder = id, settled = %s WHERE id = %s", (log + settled, worker))
    return int(worker)


def _make_days(source: sqlite3.Connection, db: Db, now: int) -> int:
    """Make the days of all messages; return the newest, which has the events of pruned ones."""
    days = sorted(day for (day,) in source.execute(f"SELECT DISTINCT {_DAY} FROM message")) or [day_of(now)]
    for day in days:
        make_day(db, day)
    return int(days[-1])


def _copy_meta(source: sqlite3.Connection, db: Db) -> str:
    """Copy the journal's own values; return the namespace of its keys."""
    query = f"SELECT key, CAST(value AS TEXT) FROM meta WHERE key NOT IN ({_OWN_META})"
    rows = dict([*source.execute(query), *source.execute(_COUNTED)])
    for row in rows.items():
        db.execute(
            "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value", row
        )
    return str(rows["namespace"])


def _copy(db: Db, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
    with db.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row([plain(each) if isinstance(each, str) else each for each in row])


def _named(rows: Iterable[Sequence[Any]], namespace: str) -> Iterator[Sequence[Any]]:
    """Add to receipts the message that their reference names."""
    for row in rows:
        named = None if row[-1] is None else referred_by(row[-1], namespace)
        yield (*row, None if named is None else named.message_id)
