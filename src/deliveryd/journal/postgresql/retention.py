"""Forgets by whole days: a day that is over long enough keeps nothing, and its partitions are dropped.

Messages are retired in the order of days and ids, by one mark that moves on: nothing is deleted one by one.
What has to stay moves to today's partitions before the mark passes it. One worker at a time does that; a
worker that finds another one at it does nothing. A day of which all is retired is dropped in transactions of
its own, one table after the other, and never behind somebody who reads for long: what waits for the lock of a
drop holds up everybody who comes later.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import psycopg

from deliveryd.journal.postgresql.commits import ChangedMeanwhile
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.database_clock import INSTANT, DatabaseClock
from deliveryd.journal.postgresql.outbox import WAITS
from deliveryd.journal.postgresql.pauses import end_pauses_of
from deliveryd.journal.postgresql.schema import (
    DAY,
    LOG_BITS,
    PARTITIONED,
    day_of,
    days_there,
    drop_partition,
    lock_partition,
    make_day,
    partition_of,
)
from deliveryd.journal.postgresql.tombstones import add_tombstones
from deliveryd.states import State

MOST_PORTIONS = 20
"""Portions that are examined at most at once while everything in them has to stay."""

POSTS_PER_MESSAGE = 4
"""Posts that are deleted at most for each message of the limit: a message's events were in two or three."""

_LAST_ID = 2**63 - 1
_RETIRED = 0
"""The state of a message whose receipt can't send it on any more, as the mark is about to pass it."""

_LOCK = 0x64_6C_76_72  # "dlvr": of who forgets, against orders about what is being forgotten
_DROP_PATIENCE = "100ms"
"""How long a drop waits for transactions that are under way; then it is tried again a minute later."""

_LONG = "1s"
"""The age from which a transaction isn't waited for at all."""

_UNSETTLED = f"({WAITS} OR (e.refused_at IS NOT NULL AND e.dropped_at IS NULL))"
_NEXT = f"""
SELECT m.id, m.ended_at IS NULL OR m.ended_at >= %(before)s
    OR EXISTS (SELECT 1 FROM awaited a WHERE a.id = m.id AND a.confirm_by IS NOT NULL)
    OR EXISTS (SELECT 1 FROM event e WHERE e.message_id = m.id AND e.day = m.day AND {_UNSETTLED})
    OR EXISTS (SELECT 1 FROM inbox i WHERE i.message_id = m.id)
FROM message m WHERE m.day = %(day)s AND (m.day, m.id) > (SELECT r.day, r.id FROM retired r)
ORDER BY m.id LIMIT %(limit)s
"""
_COUNT_AWAITED = "SELECT count(*) FROM awaited WHERE id = ANY(%s::int8[])"
_CLAIM = f"""
UPDATE message m SET state = {_RETIRED} FROM awaited a
WHERE a.id = ANY(%s::int8[]) AND m.id = a.id AND m.day = %s AND m.state = {State.SENT:d}
"""
# By the logs' watermarks and the index of what was refused: most events of a day are neither.
_MOVE_EVENTS = f"""
UPDATE event SET day = %(to)s WHERE day = %(day)s AND seq = ANY(ARRAY(
    SELECT e.seq FROM worker w JOIN event e ON e.seq > w.settled AND e.seq < (w.id + 1) << {LOG_BITS}
    WHERE e.day = %(day)s
    UNION SELECT e.seq FROM event e
    WHERE e.day = %(day)s AND e.refused_at IS NOT NULL AND e.dropped_at IS NULL))
"""
_OLD = "DELETE FROM {table} WHERE {key} = ANY(ARRAY(SELECT {key} FROM {table} WHERE {old} < %s LIMIT %s))"
_OTHERS = (
    _OLD.format(table="malformed", key="digest", old="last_at"),
    _OLD.format(table="unread", key="digest", old="last_at"),
    _OLD.format(table="unmatched", key="seq", old="received_at"),
    _OLD.format(table="decision", key="seq", old="message_id IS NULL AND at"),
    _OLD.format(table="stopped", key="ctid", old="lifted_at"),
    _OLD.format(table="former", key="id", old="ended_at"),
)
_POSTS = """
DELETE FROM post WHERE last = ANY(ARRAY(SELECT p.last FROM post p WHERE p.at < %s
    AND NOT EXISTS (SELECT 1 FROM event e WHERE e.seq BETWEEN p.first AND p.last) ORDER BY p.last LIMIT %s))
"""
_IS_READ_FOR_LONG = f"""
SELECT EXISTS (SELECT 1 FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.pid <> pg_backend_pid()
        AND l.relation = ANY(ARRAY(SELECT to_regclass(n.name)::oid FROM unnest(%s::text[]) AS n (name)))
        AND a.xact_start < clock_timestamp() - interval '{_LONG}')
"""


_RETIRED_AND_NOW = f"SELECT day, {INSTANT.format('%s')} FROM retired"


class PrunedPortion(NamedTuple):
    """What a portion came to: deleted records, and whether a day is to be dropped."""

    deleted: int
    is_drop_due: bool


def exclude_forgetting(db: Db) -> None:
    """Until the transaction ends, nothing is forgotten: an order decides about what stands there."""
    db.execute("SELECT pg_advisory_xact_lock_shared(%s)", (_LOCK,))


def day_to_take_into(db: Db, day: int, clock: DatabaseClock) -> int:
    """The day of something new: this one, or the first that isn't retired.

    A day that is over by the database's clock could be retired at the same time, without what isn't committed
    yet: it is kept from that until the transaction ends.
    """
    retired, now = db.execute(_RETIRED_AND_NOW, (clock.given,)).fetchone() or (0, 0)
    if day < day_of(now):
        exclude_forgetting(db)
        retired, _ = db.execute(_RETIRED_AND_NOW, (clock.given,)).fetchone() or (0, 0)
    return max(day, int(retired) + 1)


def prune(db: Db, worker: int, today: int, before: int, limit: int) -> PrunedPortion:
    """Retire one portion of the oldest day that is over, and delete old records of other kinds.

    What has to stay moves to `today`. Does nothing while another worker is at it.
    """
    if db.execute("SELECT pg_try_advisory_xact_lock(%s)", (_LOCK,)).fetchone() != (True,):
        return PrunedPortion(0, is_drop_due=False)
    retired = _retire(db, worker, today, before, limit)
    others = sum(db.execute(statement, (before, limit)).rowcount for statement in _OTHERS)
    db.execute(_POSTS, (before, POSTS_PER_MESSAGE * limit))
    return PrunedPortion(retired + others, is_drop_due=bool(_retired_days(db)))


def _retire(db: Db, worker: int, today: int, before: int, limit: int) -> int:
    """Retire messages of days that are over, until there were some, or `MOST_PORTIONS` had to stay.

    A newest day without messages stays: there is always one for what is recorded about pruned messages.
    """
    there, done = days_there(db), {*_retired_days(db)}
    over = [day for day in there if day not in done and (day + 1) * DAY <= before]
    portions = 0
    while over and portions < MOST_PORTIONS:
        portions += 1
        day = over[0]
        rows = db.execute(_NEXT, {"day": day, "before": before, "limit": limit}).fetchall()
        going = [id_ for id_, stays in rows if not stays]
        if not rows and day == there[-1]:
            return 0
        _claim(db, day, going)
        to = _day_to_stay_in(db, today, day)
        _move(db, day, to, [id_ for id_, stays in rows if stays])
        _forget(db, worker, going)
        last = rows[-1][0] if len(rows) == limit else _LAST_ID
        db.execute("UPDATE retired SET day = %s, id = %s", (day, last))
        if last == _LAST_ID:
            db.execute(_MOVE_EVENTS, {"to": to, "day": day})
            del over[0]
        if going:
            return len(going)
    return 0


def _day_to_stay_in(db: Db, today: int, day: int) -> int:
    """Today, or some day after the one that goes."""
    days = days_there(db)
    if today > day and today in days:
        return today
    if days[-1] > day:
        return days[-1]
    make_day(db, day + 1)
    return day + 1


def _claim(db: Db, day: int, ids: Sequence[int]) -> None:
    """Have no receipt send on any of these from here on. Raises ChangedMeanwhile: another worker had one."""
    if not ids:
        return
    (awaited,) = db.execute(_COUNT_AWAITED, (list(ids),)).fetchone() or (0,)
    if awaited and db.execute(_CLAIM, (list(ids), day)).rowcount != int(awaited):
        raise ChangedMeanwhile("a receipt came for a message that was to be pruned")


def _move(db: Db, day: int, to: int, ids: Sequence[int]) -> None:
    """Move messages that have to stay, with all that belongs to them."""
    if not ids:
        return
    for table in PARTITIONED:
        name = "id" if table == "message" else "message_id"
        db.execute(
            f"UPDATE {table} SET day = %s WHERE day = %s AND {name} = ANY(%s::int8[])", (to, day, list(ids))
        )
    db.execute("UPDATE seen SET day = %s WHERE id = ANY(%s::int8[])", (to, list(ids)))


def _forget(db: Db, worker: int, ids: Sequence[int]) -> None:
    """Keep of messages what is kept for ever; their rows go with their day."""
    if ids:
        add_tombstones(db, ids)
        forget_beside(db, ids)
        db.execute("UPDATE worker SET pruned = pruned + %s WHERE id = %s", (len(ids), worker))


def forget_beside(db: Db, ids: Sequence[int]) -> None:
    """Delete what is kept of messages in tables that aren't dropped with their day."""
    db.execute("DELETE FROM awaited WHERE id = ANY(%s::int8[])", (list(ids),))
    db.execute("DELETE FROM given WHERE id = ANY(%s::int8[])", (list(ids),))
    db.execute("DELETE FROM decision WHERE message_id = ANY(%s::int8[])", (list(ids),))
    end_pauses_of(db, ids)


def _retired_days(db: Db) -> Collection[int]:
    """The days that have partitions still, and of which all is retired."""
    day, id_ = db.execute("SELECT day, id FROM retired").fetchone() or (0, 0)
    return [each for each in days_there(db) if each < day or (each == day and id_ == _LAST_ID)]


def drop_retired(db: Db, today: int) -> None:
    """Drop the partitions of days of which all is retired, as far as nobody reads them for long.

    In a connection of its own. Events that were recorded meanwhile and aren't settled move to `today`. The
    partition of `message` goes last, as it says that the day is there.
    """
    for day in _retired_days(db):
        for table in reversed(PARTITIONED):
            try:
                with db.transaction():
                    if db.execute("SELECT pg_try_advisory_xact_lock(%s)", (_LOCK,)).fetchone() != (True,):
                        return
                    names = [table, partition_of(table, day)]
                    if db.execute(_IS_READ_FOR_LONG, (names,)).fetchone() == (True,):
                        return
                    db.execute(f"SET LOCAL lock_timeout = '{_DROP_PATIENCE}'")
                    _drop(db, table, day, today)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                return


def _drop(db: Db, table: str, day: int, today: int) -> None:
    """Drop one partition, with nobody else at its table meanwhile: a few milliseconds.

    Workers name partitions, and then have no lock of the table.
    """
    db.execute(f"LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE")
    lock_partition(db, table, day)
    if table == "event":
        db.execute(_MOVE_EVENTS, {"to": _day_to_stay_in(db, today, day), "day": day})
    drop_partition(db, table, day)
