"""Takes batches of the queue in: `seen` tells what is new, whichever worker asks."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from deliveryd import transitions
from deliveryd.journal.postgresql.commits import ChangedMeanwhile
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.days import of_day
from deliveryd.journal.postgresql.outbox import AT, PRESENT, WAITS, Outbox
from deliveryd.journal.postgresql.tombstones import read_tombstones
from deliveryd.journal.postgresql.values import arrays, plain
from deliveryd.journal.repeats import EventToRepeat, bodies_to_report, refused_dequeued, stays_silent
from deliveryd.journal.rows import variables_json
from deliveryd.model import Malformed, QueuedMessage

_SEE = """
WITH fresh AS (
    INSERT INTO seen (id, day) SELECT wanted.id, %s FROM unnest(%s::int8[]) AS wanted (id)
    ON CONFLICT (id) DO NOTHING RETURNING id),
taken AS (UPDATE worker SET taken = taken + added.number FROM (SELECT count(*) FROM fresh) AS added (number)
    WHERE id = %s AND added.number > 0)
SELECT id, 1 FROM fresh
"""
# In a statement of its own: an order that forgets one may have been carried out while the other one waited.
_BEGUN_BEFORE = "SELECT id, count + 1 FROM beginning WHERE id = ANY(%s::int8[])"
_TAKE = f"""
INSERT INTO message_of_day
    (id, day, settings_id, customer_id, taken_at, owner, log, state, variables, beginning)
SELECT s.id, %s, s.settings_id, s.customer_id, %s, %s, %s, {transitions.TAKEN:d}, s.variables, s.beginning
FROM unnest(%s::int8[], %s::int8[], %s::int8[], %s::text[], %s::int4[])
    AS s (id, settings_id, customer_id, variables, beginning)
"""
_TAKE_MALFORMED = f"""
INSERT INTO message_of_day (id, day, taken_at, ended_at, log, state)
SELECT s.id, %s, %s, %s, %s, {transitions.MALFORMED:d} FROM unnest(%s::int8[]) AS s (id)
"""
_KEEP_MALFORMED = """
INSERT INTO malformed AS kept (digest, raw, reason, message_id, first_at, last_at, times)
SELECT s.digest, s.raw, s.reason, s.message_id, %(at)s, %(at)s, s.times
FROM unnest(%(digests)s::text[], %(raws)s::text[], %(reasons)s::text[], %(ids)s::int8[], %(times)s::int4[])
    AS s (digest, raw, reason, message_id, times)
ON CONFLICT (digest) DO UPDATE
SET times = kept.times + excluded.times, last_at = excluded.last_at, dropped_at = NULL
"""
_LOSE = """
INSERT INTO meta VALUES ('batches_lost', %(batches)s), ('batch_lost_at', %(at)s) ON CONFLICT (key) DO UPDATE
SET value = CASE WHEN meta.key = 'batches_lost'
    THEN (meta.value::int8 + excluded.value::int8)::text ELSE excluded.value END
"""
_REPORTED = f"""
SELECT e.message_id, e.seq, e.status, e.body, {WAITS}, e.refused_at, e.refusals
FROM unnest(%s::int8[]) AS wanted (id) JOIN event e ON e.message_id = wanted.id
WHERE {PRESENT} ORDER BY {AT}, e.seq
"""
_COUNT_SEEN = "SELECT count(*) FROM seen WHERE id = ANY(%s::int8[])"
_IN_AN_INBOX = "SELECT message_id FROM inbox WHERE message_id = ANY(%s::int8[])"
_FORGET_REPEATS = f"""
DELETE FROM event e USING unnest(%s::int8[], %s::int8[]) AS s (message_id, kept)
WHERE e.message_id = s.message_id AND e.seq <> s.kept AND {PRESENT}
"""


def take(
    db: Db,
    outbox: Outbox,
    messages: Sequence[QueuedMessage],
    malformed: Sequence[Malformed],
    at: int,
) -> Mapping[int, int]:
    """Record a batch of the queue; return the ids that are new, with their beginnings."""
    firsts: dict[int, QueuedMessage] = {}
    for message in messages:
        firsts.setdefault(message.id, message)
    bad: dict[int, Malformed] = {}
    for each in malformed:
        if (number := each.number) is not None and number not in firsts:
            bad.setdefault(number, each)
    wanted, today = sorted(firsts.keys() | bad.keys()), outbox.days.today
    fresh: dict[int, int] = {}
    if wanted:
        fresh = dict(db.execute(_SEE, (today, wanted, outbox.worker)).fetchall())
    if fresh:
        fresh.update(db.execute(_BEGUN_BEFORE, (list(fresh),)).fetchall())
    new = [message for message in firsts.values() if message.id in fresh]
    if new:
        rows = [(m.id, m.settings_id, m.customer_id, variables_json(m.variables), fresh[m.id]) for m in new]
        db.execute(of_day(_TAKE, today), (today, at, outbox.worker, outbox.worker, *arrays(rows)))
    events = transitions.dequeued([message.id for message in new], at)
    if malformed:
        _keep_malformed(db, malformed, at)
    failed = [number for number in bad if number in fresh]
    if failed:
        db.execute(of_day(_TAKE_MALFORMED, today), (today, at, at, outbox.worker, failed))
    for number in failed:
        events += transitions.malformed(bad[number], at)
    outbox.put_first(db, events)
    _report_again(db, outbox, [id_ for id_ in wanted if id_ not in fresh], at)
    return {message.id: fresh[message.id] for message in new}


def add_lost(db: Db, batches: int, at: int) -> None:
    """Add to the number of batches that may be lost."""
    if batches:
        db.execute(_LOSE, {"batches": str(batches), "at": str(at)})


def _keep_malformed(db: Db, malformed: Sequence[Malformed], at: int) -> None:
    kept: dict[str, list[Malformed]] = defaultdict(list)
    for each in malformed:
        kept[hashlib.sha256(each.raw.encode("utf-8", "surrogatepass")).hexdigest()].append(each)
    digests = sorted(kept)
    same = [kept[digest][0] for digest in digests]
    db.execute(
        _KEEP_MALFORMED,
        {
            "digests": digests,
            "raws": [plain(each.raw) for each in same],
            "reasons": [plain(each.reason) for each in same],
            "ids": [each.number for each in same],
            "times": [len(kept[digest]) for digest in digests],
            "at": at,
        },
    )


def _report_again(db: Db, outbox: Outbox, ids: Collection[int], now: int) -> None:
    """Report messages that the queue handed out again, unless events of them wait anyway.

    Raises ChangedMeanwhile if one was forgotten since `_SEE`: then it is to be taken as new.
    """
    if not ids:
        return
    outbox.lock(db, ids)
    if db.execute(_COUNT_SEEN, (list(ids),)).fetchone() != (len(ids),):
        raise ChangedMeanwhile("a message that the queue handed out again was forgotten meanwhile")
    reported: defaultdict[int, list[EventToRepeat]] = defaultdict(list)
    for id_, *row in db.execute(_REPORTED, (list(ids),)):
        reported[id_].append(EventToRepeat(*row))
    inboxes = {id_ for (id_,) in db.execute(_IN_AN_INBOX, (list(ids),))}
    again = [id_ for id_ in ids if id_ not in inboxes and not stays_silent(reported[id_], now)]
    tombstones = read_tombstones(db, again)
    last: list[int] = []
    bodies: list[tuple[int, str, str]] = []
    leftover: list[tuple[int, int]] = []
    for id_ in again:
        refused = refused_dequeued(reported[id_])
        texts = bodies_to_report(reported[id_], tombstones.get(id_))
        if id_ in tombstones:  # the rows are those of an earlier repeat: each repeat would leave some
            leftover.append((id_, refused.seq if refused is not None else 0))
        if refused is not None:
            last.append(refused.seq)
            texts.pop("dequeued", None)
        bodies += [(id_, status, body) for status, body in texts.items()]
    if leftover:
        db.execute(_FORGET_REPEATS, arrays(leftover))
    outbox.put_last(db, last)
    outbox.put_again(db, bodies)
