"""What the service answers to events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deliveryd import transitions
from deliveryd.journal.base import OutboxRow
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.days import by_day
from deliveryd.journal.postgresql.outbox import Outbox
from deliveryd.journal.postgresql.schema import LOG_BITS
from deliveryd.journal.postgresql.values import ENTRY, LOCATED, VISIBLE, arrays, plain
from deliveryd.journal.postgresql.watermark import note_posted, settle_posted, settle_refused
from deliveryd.journal.rows import entry_of
from deliveryd.model import Entry

_RELEASE = by_day(f"""
UPDATE {{message}} m SET state = {transitions.DEQUEUED_ACCEPTED.after:d}
FROM unnest(%s::int8[]) AS s (id) {{located}}
WHERE {{is_there}} AND m.state = {transitions.DEQUEUED_ACCEPTED.before:d} RETURNING m.id, m.log
""")
# An operator's decision to drop one stays.
_SET_ASIDE = f"""
SELECT {ENTRY} FROM unnest(%s::int8[]) AS wanted (seq) JOIN event e ON e.seq = wanted.seq
{LOCATED.format(id="e.message_id")}
WHERE e.dropped_at IS NULL AND m.state = {transitions.REOPENED.before:d} AND {VISIBLE} ORDER BY m.id
FOR NO KEY UPDATE OF m
"""
_GIVEN = "DELETE FROM given WHERE id = ANY(%s::int8[]) RETURNING id"
_ENTRIES = f"""
SELECT {ENTRY} FROM unnest(%s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")} ORDER BY m.id
"""
_REOPEN = f"""
UPDATE message m SET state = {transitions.REOPENED.after:d}, ended_at = NULL, owner = %s
FROM unnest(%s::int8[]) AS wanted (id) JOIN seen ON seen.id = wanted.id
WHERE m.day = seen.day AND m.id = seen.id AND m.state = {transitions.REOPENED.before:d}
"""
_LATER = f"""
SELECT e.seq FROM unnest(%s::int8[], %s::int8[]) AS s (id, seq) JOIN event e ON e.message_id = s.id
WHERE e.seq >= s.seq AND e.seq >> {LOG_BITS} = s.seq >> {LOG_BITS} ORDER BY e.seq
"""
_REFUSE = """
UPDATE event SET refused_at = %s, refused = %s, refusals = coalesce(refusals, 0) + 1 WHERE seq = %s
RETURNING refusals
"""
_SET_MESSAGE_ASIDE = f"""
UPDATE message m SET state = {transitions.DEQUEUED_REFUSED.after:d}, ended_at = %s, owner = NULL
FROM seen WHERE seen.id = %s AND m.day = seen.day AND m.id = seen.id
    AND m.state = {transitions.DEQUEUED_REFUSED.before:d}
"""


def accept(db: Db, outbox: Outbox, worker: int, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
    """Mark events as accepted; return the messages that may be sent now and weren't known here.

    They were set aside, or an order at another worker gave them to this one, which hasn't followed it yet:
    their `dequeued` waited already, since the queue had handed them out again.
    """
    settled = settle_posted(db, worker, {row.seq for row in rows}, at)
    if not settled:
        return []
    outbox.note(db, at)
    dequeued = {
        row.seq: row.message_id
        for row in rows
        if row.status == "dequeued" and any(each.first <= row.seq <= each.last for each in settled)
    }
    return _release(db, outbox, worker, dequeued)


def accept_early(db: Db, outbox: Outbox, worker: int, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
    """Let messages go on whose `dequeued` was accepted; the events stay in the outbox."""
    outbox.note(db, at)
    note_posted(db, {row.seq for row in rows}, at)
    return _release(db, outbox, worker, {row.seq: row.message_id for row in rows if row.status == "dequeued"})


def _release(db: Db, outbox: Outbox, worker: int, dequeued: Mapping[int, int]) -> list[Entry]:
    """Make READY what awaits the acceptance of its `dequeued`, by number; return what wasn't known here."""
    if not dequeued:
        return []
    ids = sorted(set(dequeued.values()))
    days = dict.fromkeys(ids, outbox.days.today)
    released = outbox.days.lock_anywhere(db, _RELEASE, [(id_,) for id_ in ids], days)
    given = sorted(id_ for (id_,) in db.execute(_GIVEN, (list(released.logs),)))
    unknown = [entry_of(row) for row in db.execute(_ENTRIES, (given,))] if given else []
    if len(released.logs) == len(dequeued):
        return unknown
    outbox.lock(db, set(ids).difference(released.logs))  # an order may drop one in this moment
    entries = [entry_of(row) for row in db.execute(_SET_ASIDE, (list(dequeued),))]
    if entries:
        db.execute(_REOPEN, (worker, [entry.id for entry in entries]))
    return unknown + entries


def put_last(db: Db, outbox: Outbox, rows: Sequence[OutboxRow]) -> None:
    """Have events wait behind all others, with the later ones of their messages."""
    outbox.lock(db, {row.message_id for row in rows})  # what inboxes hold of them is among these
    wanted = [(row.message_id, row.seq) for row in rows]
    outbox.put_last(db, [seq for (seq,) in db.execute(_LATER, arrays(wanted))])


def refuse(db: Db, outbox: Outbox, row: OutboxRow, reason: str, at: int) -> int:
    """Set an event aside; return how often it was refused by now."""
    if not settle_refused(db, outbox.worker, row.seq):
        return 0
    outbox.note(db, at)
    found = db.execute(_REFUSE, (at, plain(reason), row.seq)).fetchone()
    if row.status == "dequeued":
        db.execute(_SET_MESSAGE_ASIDE, (at, row.message_id))
    return 0 if found is None else int(found[0])
