"""The watermark of each log: its events up to that number are settled, and those behind it wait.

Most events that wait are in the worker's own log and in the partition of one day, and a log's numbers have
no gaps as long as nothing is deleted or put at its end. So that partition alone is looked at first; if that
may not be all, all of them are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from deliveryd.errors import OutOfOrder
from deliveryd.journal.base import OutboxRow
from deliveryd.journal.postgresql.commits import ChangedMeanwhile
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.days import of_day
from deliveryd.journal.postgresql.schema import LOG_BITS
from deliveryd.journal.postgresql.values import arrays

_WAITING_OF_DAY = f"""
SELECT w.id, w.settled, e.seq, e.message_id, e.status, e.body FROM worker w LEFT JOIN LATERAL (
    SELECT seq, message_id, status, body FROM event_of_day
    WHERE w.id = %(worker)s AND seq > w.settled AND seq < (w.id + 1) << {LOG_BITS}
    ORDER BY seq LIMIT %(limit)s) AS e ON true
WHERE w.holder = %(worker)s ORDER BY w.id, e.seq
"""
_WAITING = f"""
SELECT e.seq, e.message_id, e.status, e.body FROM worker w CROSS JOIN LATERAL (
    SELECT seq, message_id, status, body FROM event
    WHERE seq > CASE w.id WHEN %(log)s THEN greatest(w.settled, %(after)s) ELSE w.settled END
        AND seq < (w.id + 1) << {LOG_BITS}
    ORDER BY seq LIMIT %(limit)s) AS e
WHERE w.holder = %(worker)s AND (w.id = %(worker)s, w.id) >= (%(log)s = %(worker)s, %(log)s)
ORDER BY w.id = %(worker)s, e.seq LIMIT %(limit)s
"""  # an adopted log first: it comes to an end
_LOGS = "SELECT id, settled FROM worker WHERE holder = %s"
_AHEAD = "SELECT seq FROM event WHERE seq > %s AND seq <= %s"
_REFUSED = "UPDATE worker SET settled = %s WHERE id = %s AND holder = %s"
_POSTED = """
WITH posted AS (
    UPDATE worker w SET settled = s.last
    FROM unnest(%s::int8[], %s::int8[], %s::int8[]) AS s (log, first, last)
    WHERE w.id = s.log AND w.holder = %s AND w.settled = s.first - 1 RETURNING s.first, s.last)
INSERT INTO post (at, last, first) SELECT %s, last, first FROM posted
ON CONFLICT (last) DO UPDATE SET first = least(post.first, excluded.first), at = excluded.at
"""
_SETTLED_AGAIN = """
DELETE FROM post p USING unnest(%s::int8[], %s::int8[], %s::int8[]) AS s (log, first, last)
WHERE p.last >= s.first AND p.last < s.last
"""
_POSTED_EARLY = """
INSERT INTO post (at, last, first)
SELECT %s, s.last, s.first FROM unnest(%s::int8[], %s::int8[]) AS s (first, last)
ON CONFLICT (last) DO UPDATE SET first = least(post.first, excluded.first), at = excluded.at
"""


class Settled(NamedTuple):
    """Events that were settled now, of one log."""

    log: int
    first: int
    last: int


def waiting_of_day(db: Db, worker: int, day: int, last: int, limit: int) -> list[OutboxRow] | None:
    """The oldest events that wait, if a day has all of them; None: there may be others.

    `last` is the number of the latest event in the worker's own log.
    """
    rows = db.execute(of_day(_WAITING_OF_DAY, day), {"limit": limit, "worker": worker}).fetchall()
    if not _are_all(rows, worker, last, limit):
        return None
    return [OutboxRow(*row[2:]) for row in rows if row[2] is not None]


def _are_all(rows: Sequence[tuple[Any, ...]], worker: int, last: int, limit: int) -> bool:
    """Whether the worker holds no other log, and the numbers are all that follow the watermark."""
    if {log for log, *_ in rows} != {worker}:
        return False
    settled = rows[0][1]
    numbers = [seq for _, _, seq, *_ in rows if seq is not None]
    if numbers != list(range(settled + 1, settled + 1 + len(numbers))):
        return False
    return len(numbers) == limit or settled + len(numbers) == last


def waiting(db: Db, worker: int, after: int, limit: int) -> list[OutboxRow]:
    """The oldest events behind one that wait in the logs that a worker holds, log by log."""
    values = {"after": after, "log": after >> LOG_BITS, "limit": limit, "worker": worker}
    return [OutboxRow(*row) for row in db.execute(_WAITING, values)]


def settle_posted(db: Db, worker: int, seqs: AbstractSet[int], at: int) -> list[Settled]:
    """Settle events that the service accepted, in logs that a worker holds; return what is settled by that.

    Raises OutOfOrder when an event that waits further ahead isn't among them: it would never be reported.
    """
    gapless = _without_gaps(seqs)
    if gapless is not None and _raise_watermarks(db, worker, [gapless], at):
        return [gapless]
    settled = list(_settled_by(db, worker, seqs))
    if settled and not _raise_watermarks(db, worker, settled, at):
        raise ChangedMeanwhile("the watermark of a log was raised meanwhile")
    return settled


def _raise_watermarks(db: Db, worker: int, settled: Sequence[Settled], at: int) -> bool:
    """Whether the watermarks were those before the first of these, and are raised."""
    if db.execute(_POSTED, (*arrays(settled), worker, at)).rowcount != len(settled):
        return False
    db.execute(_SETTLED_AGAIN, arrays(settled))  # posts of what was accepted early
    return True


def note_posted(db: Db, seqs: Collection[int], at: int) -> None:
    """Record that the service accepted these events: those that follow one another as one post."""
    numbers = sorted(seqs)
    breaks = [(before, after) for before, after in pairwise(numbers) if after != before + 1]
    firsts = [*numbers[:1], *(after for _, after in breaks)]
    lasts = [*(before for before, _ in breaks), *numbers[-1:]]
    db.execute(_POSTED_EARLY, (at, firsts, lasts))


def settle_refused(db: Db, worker: int, seq: int) -> list[Settled]:
    """Settle an event that the service refused, like `settle_posted`."""
    settled = list(_settled_by(db, worker, {seq}))
    for log, _, last in settled:
        db.execute(_REFUSED, (last, log, worker))
    return settled


def _without_gaps(seqs: AbstractSet[int]) -> Settled | None:
    """All of them, if they follow one another in one log: nothing can wait between them."""
    if not seqs:
        return None
    first, last = min(seqs), max(seqs)
    log = first >> LOG_BITS
    return Settled(log, first, last) if last - first + 1 == len(seqs) and last >> LOG_BITS == log else None


def _settled_by(db: Db, worker: int, seqs: AbstractSet[int]) -> Iterator[Settled]:
    """What is settled if the watermarks are raised to the last of these events. Raises OutOfOrder."""
    watermarks: dict[int, int] = dict(db.execute(_LOGS, (worker,)).fetchall())
    for log, group in groupby(sorted(seqs), key=lambda seq: seq >> LOG_BITS):
        settled = max(watermarks.get(log, 1 << 62), log << LOG_BITS)
        numbers = [seq for seq in group if seq > settled]
        if not numbers:
            continue
        last = numbers[-1]
        if last - settled == len(numbers):  # none is left out
            ahead = frozenset[int]()
        else:
            ahead = frozenset(seq for (seq,) in db.execute(_AHEAD, (settled, last)))
        if left := ahead.difference(numbers):
            raise OutOfOrder(
                f"event {last} can't be settled before event {min(left)}, which waits ahead of it"
            )
        yield Settled(log, settled + 1, last)
