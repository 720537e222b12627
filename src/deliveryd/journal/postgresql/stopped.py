"""The list of recipients who can't be reached on a channel any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deliveryd.journal.base import MatchedReceipt
from deliveryd.journal.orders import Effect
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.values import plain
from deliveryd.journal.stopped import Listed, StoppedRecipient, listed_after, not_after
from deliveryd.model import StopChange

_LIST = """
SELECT channel, digest, at, reason, source FROM stopped
WHERE lifted_at IS NULL AND (%(channel)s::text IS NULL OR channel = %(channel)s) ORDER BY at, channel, digest
"""
_FIND = "SELECT at, lifted_at FROM stopped WHERE channel = %s AND digest = %s FOR UPDATE"
_KEEP = """
INSERT INTO stopped (channel, digest, at, lifted_at, reason, source, change)
VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (channel, digest) DO UPDATE SET at = excluded.at, lifted_at = excluded.lifted_at,
    reason = excluded.reason, source = excluded.source, change = excluded.change
"""
_LIFT = """
INSERT INTO stopped (channel, digest, at, lifted_at, source, change) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (channel, digest) DO UPDATE SET lifted_at = excluded.lifted_at, change = excluded.change
"""
# Whoever changes the list has the row of its version, so that numbers come in the order of commits.
_NEXT_CHANGE = "UPDATE version SET number = number + 1 WHERE kind = 'stops' RETURNING number"
_CHANGED = """
SELECT channel, digest, coalesce(lifted_at, at), lifted_at IS NULL, reason, source FROM stopped
WHERE change > %s AND change <= %s ORDER BY change
"""


def record_stops(db: Db, changes: Collection[StopChange]) -> list[bool]:
    """Record changes; return for each whether it changed the list."""
    if not changes:
        return []
    (number,) = db.execute(_NEXT_CHANGE).fetchone() or (0,)
    return [_record(db, change, number) for change in changes]


def _record(db: Db, change: StopChange, number: int) -> bool:
    row = db.execute(_FIND, (change.channel, change.digest)).fetchone()
    after = listed_after(change, None if row is None else Listed(*row))
    if after is None:
        return False
    channel, digest = change.channel, change.digest
    if after.is_kept and after.lifted_at is None:
        db.execute(_KEEP, (channel, digest, after.at, None, plain(change.reason), change.source, number))
    elif after.is_kept:
        db.execute(_LIFT, (channel, digest, after.at, after.at, change.source, number))
    return after.is_changed


def changed_stops(db: Db, after: int, until: int) -> list[StopChange]:
    """Return what changed, by the numbers of the changes.

    Also by whom it is asked: where its own change came on top of another worker's, it knows neither result.
    """
    rows = db.execute(_CHANGED, (after, until))
    return [StopChange(channel, bytes(digest), *rest) for channel, digest, *rest in rows]


def stops_reported(db: Db, changes: Sequence[StopChange], now: int | None) -> list[MatchedReceipt]:
    """Record what receipts say of recipients; return what each one did.

    `now` is of the clock that workers have in common; None: there is one worker. By clocks that differ, a
    later report could seem to be the earlier one.
    """
    changes = [
        each if each.heard_at is None else not_after(each, each.heard_at if now is None else now)
        for each in changes
    ]
    return [
        MatchedReceipt("matched", Effect(stop=change)) if changed else MatchedReceipt("repeated")
        for change, changed in zip(changes, record_stops(db, changes), strict=True)
    ]


def in_force(db: Db) -> list[tuple[str, bytes]]:
    """Return the channel and the digest of everybody on the list."""
    rows = db.execute("SELECT channel, digest FROM stopped WHERE lifted_at IS NULL")
    return [(channel, bytes(digest)) for channel, digest in rows]


def read_stopped(db: Db, channel: str | None) -> list[StoppedRecipient]:
    """Return the list, of one channel if given, oldest first."""
    return [StoppedRecipient(*row) for row in db.execute(_LIST, {"channel": plain(channel)})]
