"""Messages that the queue hands out again: their `dequeued` and their latest event are reported once more."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deliveryd.journal.rows import IDS, to_json
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.deletion import Tombstone, read_tombstones
from deliveryd.journal.sql.outbox import WATERMARK, Outbox
from deliveryd.runtime.breaker import backoff

MINUTE = 60_000_000
LONGEST_REPEAT_PAUSE = 60
"""Minutes between two reports of a `dequeued` that the service keeps refusing, at most."""

_REPORTED = f"""
SELECT message_id, seq, status, body, seq > {WATERMARK}, refused_at, refusals FROM event
WHERE message_id IN {IDS} ORDER BY seq
"""  # noqa: S608  # constants


class EventToRepeat(NamedTuple):
    """An event of a message; `refused_at` None: the service accepted it, or it waits."""

    seq: int
    status: str
    body: str
    waits: bool
    refused_at: int | None
    refusals: int | None


def report_again(db: Db, outbox: Outbox, ids: Iterable[int], now: int) -> None:
    """Report messages that the queue handed out again, unless events of them wait anyway.

    A `dequeued` that was refused keeps its row. It is reported again at once the first time, then after 1, 2,
    4 minutes and so on; a message that is handed out between those times isn't reported at all.
    """
    ids = list(dict.fromkeys(ids))
    if not ids:
        return
    reported: defaultdict[int, list[EventToRepeat]] = defaultdict(list)
    for id_, *event in db.execute(_REPORTED, (to_json(ids),)):
        reported[id_].append(EventToRepeat(*event))
    tombstones = read_tombstones(db, ids)
    replaced: list[tuple[int, int]] = []
    last: list[int] = []
    again: list[tuple[int, str, str]] = []
    for id_ in ids:
        rows, tombstone = reported[id_], tombstones.get(id_)
        if stays_silent(rows, now):
            continue
        refused, bodies = refused_dequeued(rows), bodies_to_report(rows, tombstone)
        if tombstone is not None:  # the rows are those of an earlier repeat: each repeat would leave some
            replaced.append((id_, refused.seq if refused is not None else 0))
        if refused is not None:
            last.append(refused.seq)
            bodies.pop("dequeued", None)
        again += [(id_, status, body) for status, body in bodies.items()]
    if replaced:
        db.executemany("DELETE FROM event WHERE message_id = ? AND seq <> ?", replaced)
    if last:
        outbox.put_last(db, last)
    outbox.put_again(db, again)


def refused_dequeued(rows: Sequence[EventToRepeat]) -> EventToRepeat | None:
    """The message's latest `dequeued`, if the service refused it."""
    latest = next((row for row in reversed(rows) if row.status == "dequeued"), None)
    return latest if latest is not None and latest.refused_at is not None else None


def stays_silent(rows: Sequence[EventToRepeat], now: int) -> bool:
    """Whether nothing is to be reported again now: events wait, or a refused `dequeued` isn't due."""
    refused = refused_dequeued(rows)
    return any(row.waits for row in rows) or (refused is not None and not _is_due(refused, now))


def _is_due(refused: EventToRepeat, now: int) -> bool:
    times = refused.refusals or 1
    pause = backoff(1.0, LONGEST_REPEAT_PAUSE, times - 1, least=1.0) * MINUTE if times > 1 else 0.0
    since = now - (refused.refused_at or 0)
    return since < 0 or since >= pause  # before it: the clock was put back


def bodies_to_report(rows: Sequence[EventToRepeat], tombstone: Tombstone | None) -> dict[str, str]:
    """What is to be reported again, by status: `dequeued`, and the latest event that wasn't refused."""
    if tombstone is not None:
        return {json.loads(body)["status"]: body for body in tombstone if body is not None}
    bodies = {row.status: row.body for row in rows}
    accepted = [row.status for row in rows if row.refused_at is None]
    again = ("dequeued", *accepted[-1:])
    return {status: bodies[status] for status in again if status in bodies}
