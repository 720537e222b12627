"""Reads the journal beside the workers: each read is one snapshot, and holds up no writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import psycopg

from deliveryd.errors import JournalError, JournalUnreachable, JournalUnusable
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import Connected, connect_to_read, first_line, is_lost
from deliveryd.journal.postgresql.database import Database, Snapshots
from deliveryd.journal.postgresql.schema import check_readable
from deliveryd.journal.reader import Reader
from deliveryd.journal.sql.db import Db

T = TypeVar("T")

_LOG_OF = """
SELECT log FROM main.message WHERE id = ? UNION ALL SELECT log FROM main.tombstone WHERE id = ?
"""
_HOLDER = """
SELECT w.name || ' (' || w.id || ')' FROM main.log l JOIN main.worker w ON w.id = l.holder WHERE l.number = ?
"""  # with its number: two may have one name

_GRANT = (
    "GRANT USAGE ON SCHEMA main, own and SELECT ON ALL TABLES IN SCHEMA main, own TO the user that"
    " journal.url names"
)

SHARED_CHECKS: Mapping[str, str] = {
    "a message is in a log that is there": (
        "SELECT m.id FROM message m WHERE NOT EXISTS (SELECT 1 FROM log l WHERE l.number = m.log)"
    ),
    "an event is in the log of its message": (
        "SELECT e.message_id FROM event e JOIN message m ON m.id = e.message_id WHERE m.log <> e.seq >> 40"
    ),
    "an attempt is in the log of its message": (
        "SELECT u.message_id FROM unaccepted u JOIN message m ON m.id = u.message_id WHERE m.log <> u.log"
    ),
    "the watermark of a log is within it": "SELECT l.number FROM log l WHERE l.settled >> 40 <> l.number",
    "an inbox belongs to a log that is there": (
        "SELECT i.seq FROM inbox i WHERE NOT EXISTS (SELECT 1 FROM log l WHERE l.number = i.log)"
    ),
    "what is open is in a log that a worker has or may take over": (
        "SELECT m.id FROM message m JOIN log l ON l.number = m.log WHERE m.ended_at IS NULL"
        " AND l.holder IS NOT NULL AND NOT EXISTS (SELECT 1 FROM worker w WHERE w.id = l.holder)"
    ),
}
"""What must be true of logs; see `audit.CHECKS`."""


def _look_at(db: Db, message_id: int) -> str | None:
    """Work on the log of a message; return the name of the worker that has it, or had it last."""
    row = db.execute(_LOG_OF, (message_id, message_id)).fetchone()
    if row is None or not isinstance(db, Database):
        return None
    db.enter(row[0])
    holder = db.execute(_HOLDER, row).fetchone()
    return None if holder is None else str(holder[0])


def _connected(source: JournalDatabase) -> Connected:
    """Connect. Raises JournalAbsent, JournalUnreachable, JournalUnusable."""
    db = connect_to_read(source)
    try:
        check_readable(db, source.name)
    except BaseException:
        db.close()
        raise
    return db


def database_reader(source: JournalDatabase) -> Reader:
    """Return what reads the journal in a database."""
    snapshots = Snapshots(partial(_connected, source))

    def read(query: Callable[[Db], T]) -> T:
        try:
            return snapshots(query)
        except psycopg.Error as error:
            raise _translated(error) from error

    return Reader(read, look_at=_look_at, checks=SHARED_CHECKS, is_by_end=False)


def _translated(error: psycopg.Error) -> JournalError:
    text = f"the journal's database can't be read: {first_line(error)}"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return JournalUnusable(f"{text}; {_GRANT}")
    return JournalUnreachable(text) if is_lost(error) else JournalError(text)
