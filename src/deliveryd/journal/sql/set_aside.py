"""What was set aside for an operator: events that the service refused, and what nobody could read or match.

Read and marked in the transaction that is open; `dead_letters` lists it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.outbox import AT, HAPPENED, WATERMARK
from deliveryd.states import State

_SET_ASIDE_EVENTS = (  # refused, or reported once more since the queue handed the message out again
    f"status = 'dequeued' AND dropped_at IS NULL AND (refused IS NOT NULL OR seq > {WATERMARK})"
)


class EventRefused(NamedTuple):
    """An event that the service refused, and whether its message is set aside."""

    message_id: int
    status: str
    is_message_aside: bool


class LatestEvent(NamedTuple):
    """The event that happened last of those that weren't refused, and whether it still waits."""

    status: str
    body: str
    waits: bool


def set_aside_events(db: Db, id_: int) -> Sequence[int]:
    """The numbers of a message's `dequeued` that was refused, and of its repeat that waits."""
    query = f"SELECT seq FROM event WHERE message_id = ? AND {_SET_ASIDE_EVENTS} ORDER BY seq"  # noqa: S608
    return [seq for (seq,) in db.execute(query, (id_,))]


def with_waiting(db: Db, seq: int, id_: int) -> Sequence[int]:
    """The numbers of a refused event and of those of its message that wait, as they happened."""
    query = (
        f"SELECT seq FROM event WHERE message_id = ? AND (seq = ? OR seq > {WATERMARK})"  # noqa: S608
        f" ORDER BY {AT}, {HAPPENED}"
    )
    return [number for (number,) in db.execute(query, (id_, seq))]


def refused_event(db: Db, seq: int) -> EventRefused | None:
    """An event that was refused, and not dropped."""
    row = db.execute(
        "SELECT message_id, status,"  # noqa: S608  # a constant
        f" EXISTS (SELECT 1 FROM message WHERE id = message_id AND state = {State.SET_ASIDE:d})"
        " FROM event WHERE seq = ? AND refused IS NOT NULL AND dropped_at IS NULL",
        (seq,),
    ).fetchone()
    return None if row is None else EventRefused(row[0], row[1], bool(row[2]))


def latest_event(db: Db, id_: int) -> LatestEvent:
    """A message's latest event, in the order in which things happened."""
    status, body, waits = db.execute(
        f"SELECT status, body, max(seq) > {WATERMARK} FROM event"  # noqa: S608  # constants
        " WHERE message_id = ? GROUP BY status, body HAVING count(refused) < count(*)"
        f" ORDER BY min({HAPPENED}) DESC LIMIT 1",
        (id_,),
    ).fetchone()
    return LatestEvent(status, body, bool(waits))


def is_unmatched(db: Db, seq: int) -> bool:
    """Whether a receipt fits no attempt yet, and wasn't dropped."""
    query = "SELECT 1 FROM receipt WHERE seq = ? AND message_id IS NULL AND dropped_at IS NULL"
    return db.execute(query, (seq,)).fetchone() is not None


def malformed_named(db: Db, prefix: str) -> Sequence[tuple[str, int | None]]:
    """Malformed elements whose digests begin so, each with its message's id."""
    return db.execute(
        "SELECT digest, message_id FROM malformed"
        " WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
        (prefix,),
    ).fetchall()


def reports_named(db: Db, prefix: str) -> Sequence[str]:
    """The digests of reports that can't be read, which begin so."""
    rows = db.execute(
        "SELECT digest FROM unread WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
        (prefix,),
    )
    return [digest for (digest,) in rows]


def drop_events_set_aside(db: Db, id_: int, at: int) -> bool:
    """Mark the `dequeued` of a message as dropped; return whether there was one."""
    query = f"UPDATE event SET dropped_at = ? WHERE message_id = ? AND {_SET_ASIDE_EVENTS}"  # noqa: S608
    return db.execute(query, (at, id_)).rowcount > 0


def drop_event(db: Db, seq: int, at: int) -> bool:
    """Mark an event as dropped."""
    return db.execute("UPDATE event SET dropped_at = ? WHERE seq = ?", (at, seq)).rowcount > 0


def drop_receipt(db: Db, seq: int, at: int) -> bool:
    """Mark a receipt as dropped."""
    return db.execute("UPDATE receipt SET dropped_at = ? WHERE seq = ?", (at, seq)).rowcount > 0


def drop_malformed(db: Db, digest: str, at: int) -> bool:
    """Mark a malformed element as dropped."""
    return db.execute("UPDATE malformed SET dropped_at = ? WHERE digest = ?", (at, digest)).rowcount > 0


def drop_report(db: Db, digest: str, at: int) -> bool:
    """Mark a report as dropped."""
    return db.execute("UPDATE unread SET dropped_at = ? WHERE digest = ?", (at, digest)).rowcount > 0
