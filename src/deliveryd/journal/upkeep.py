"""What the journal does at its start, for its sums, and for forgetting: plain functions on a connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection

from deliveryd.journal.account import add_forgotten, open_states
from deliveryd.journal.base import Counts, Doubtful, Recovery
from deliveryd.journal.rows import ENTRY, entry_of
from deliveryd.model import attempt_id
from deliveryd.states import State

_OPEN = f"SELECT {ENTRY} FROM message WHERE ended_at IS NULL AND state = ? ORDER BY id"  # noqa: S608  # a constant

_STRANDED = "ended_at IS NULL AND state = 3 AND lane <> '' AND lane NOT IN (SELECT value FROM json_each(?))"


def namespace_of(db: sqlite3.Connection) -> str:
    """What the ids of all attempts of this journal begin with."""
    (namespace,) = db.execute("SELECT value FROM meta WHERE key = 'namespace'").fetchone()
    return str(namespace)


def last_seq(db: sqlite3.Connection) -> int:
    """The highest number that an event ever had, without reading all events."""
    (waiting,) = db.execute("SELECT coalesce(max(seq), 0) FROM event WHERE settled_at IS NULL").fetchone()
    (settled,) = db.execute("SELECT value FROM meta WHERE key = 'settled_seq'").fetchone()
    return max(int(waiting), int(settled))


def recover(db: sqlite3.Connection, namespace: str, now: int, lanes: Collection[str]) -> Recovery:
    """Put in order what an earlier run left."""
    db.execute("UPDATE message SET state = 3, due_at = ? WHERE ended_at IS NULL AND state = 2", (now,))
    known = json.dumps(list(lanes))
    db.execute(
        f"UPDATE message SET state = 5, due_at = NULL WHERE {_STRANDED} AND doubt IS NOT NULL",  # noqa: S608
        (known,),
    )
    db.execute(f"UPDATE message SET lane = '', tries = 0 WHERE {_STRANDED}", (known,))  # noqa: S608
    taken = [entry_of(row) for row in db.execute(_OPEN, (State.TAKEN,))]
    doubtful = [
        Doubtful(entry._replace(doubt=attempt_id(namespace, entry.id, entry.attempts)), state)
        for state in (State.SENDING, State.IN_DOUBT)
        for entry in map(entry_of, db.execute(_OPEN, (state,)))
    ]
    (waiting,) = db.execute("SELECT count(*) FROM message WHERE ended_at IS NULL AND state = 3").fetchone()
    # No DISTINCT here: SQLite would read the whole table, since its key is in the right order.
    reporting = db.execute(
        "SELECT message_id FROM event WHERE settled_at IS NULL AND status IN ('sent', 'error') ORDER BY seq"
    )
    return Recovery(taken, doubtful, waiting, list(dict.fromkeys(row[0] for row in reporting)))


def counts(db: sqlite3.Connection) -> Counts:
    """The sums of what is open."""
    return Counts(
        open_states(db),
        *db.execute(
            "SELECT (SELECT count(*) FROM event WHERE settled_at IS NULL),"
            " (SELECT count(*) FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL),"
            " (SELECT count(*) FROM malformed WHERE dropped_at IS NULL),"
            " (SELECT count(*) FROM receipt WHERE message_id IS NULL AND dropped_at IS NULL)"
        ).fetchone(),
    )


def forget(db: sqlite3.Connection, before: int, limit: int) -> int:
    """Delete old ended messages, keeping what a repeat would need, and what else is as old."""
    rows = db.execute(
        "SELECT id FROM message WHERE ended_at < ? AND NOT EXISTS (SELECT 1 FROM event"
        " WHERE message_id = message.id"
        " AND (settled_at IS NULL OR (refused IS NOT NULL AND dropped_at IS NULL)))"
        " ORDER BY ended_at LIMIT ?",
        (before, limit),
    ).fetchall()
    db.executemany(
        "INSERT INTO past SELECT ?1,"
        " (SELECT body FROM event WHERE message_id = ?1 AND status = 'dequeued' LIMIT 1),"
        " (SELECT body FROM event WHERE message_id = ?1 ORDER BY seq DESC LIMIT 1)",
        rows,
    )
    for statement in (
        "DELETE FROM event WHERE message_id = ?",
        "DELETE FROM attempt WHERE message_id = ?",
        "DELETE FROM receipt WHERE message_id = ?",
        "DELETE FROM decision WHERE message_id = ?",
        "DELETE FROM message WHERE id = ?",
    ):
        db.executemany(statement, rows)
    for statement in (
        "DELETE FROM malformed WHERE digest IN (SELECT digest FROM malformed WHERE last_at < ? LIMIT ?)",
        (
            "DELETE FROM receipt WHERE seq IN"
            " (SELECT seq FROM receipt WHERE message_id IS NULL AND received_at < ? LIMIT ?)"
        ),
        (
            "DELETE FROM decision WHERE seq IN"
            " (SELECT seq FROM decision WHERE message_id IS NULL AND at < ? LIMIT ?)"
        ),
    ):
        db.execute(statement, (before, limit))
    add_forgotten(db, len(rows))
    return len(rows)
