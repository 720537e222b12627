"""Adoption: what workers left whose leases are over goes on with another one.

`worker.holder` says who has a worker's messages and reports its events: adoption is one update of that row,
conditional on the holder that was seen, so that one of several adopters succeeds. A log is adopted whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.journal.base import Doubtful, EndedWorker, Recovery
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.elsewhere import keep_providers
from deliveryd.journal.postgresql.lease import ATTEMPTS_MAY_GO_ON, LEFT_OVER, RELEASED
from deliveryd.journal.postgresql.schema import LOG_BITS
from deliveryd.journal.postgresql.values import ENTRY
from deliveryd.journal.postgresql.waiting import entries_of, hold_in_doubt, move_away
from deliveryd.journal.rows import entry_of
from deliveryd.states import State

_HAS_EVENTS = f"""
(EXISTS (SELECT 1 FROM event e WHERE e.seq > w.settled AND e.seq < (w.id + 1) << {LOG_BITS})
    OR EXISTS (SELECT 1 FROM inbox i WHERE i.log = w.id))
"""
_HAS_MESSAGES = "EXISTS (SELECT 1 FROM message m WHERE m.owner = w.id)"
_FOREIGN = "m.provider = ANY(%(foreign)s::text[])"
_ORPHANED = f"""
SELECT w.id, w.name, w.ended, w.holder, {_HAS_EVENTS},
    EXISTS (SELECT 1 FROM message m WHERE m.owner = w.id AND NOT {_FOREIGN}), {_HAS_MESSAGES}
FROM worker w WHERE w.ended IS NOT NULL AND w.id > 0 AND w.holder IS DISTINCT FROM %(me)s
    AND NOT EXISTS (SELECT 1 FROM worker h WHERE h.id = w.holder
        AND (h.ended IS NULL OR {ATTEMPTS_MAY_GO_ON.format("h")}))
    AND NOT {ATTEMPTS_MAY_GO_ON.format("w")}
ORDER BY w.id
"""
_HELD_BY = "SELECT id FROM worker WHERE holder = %s"
_ADOPT = "UPDATE worker SET holder = %s WHERE id = %s AND holder IS NOT DISTINCT FROM %s"
_INTERRUPTED = f"""
WITH moved AS (UPDATE message SET state = {transitions.RUN_INTERRUPTED.after:d}, owner = NULL
    WHERE owner = ANY(%s::int8[]) AND state = {transitions.RUN_INTERRUPTED.before:d}
    RETURNING id, provider, doubt)
INSERT INTO waiting (id, provider, doubt, due_at) SELECT id, provider, doubt, %s FROM moved
RETURNING id, provider, doubt
"""
_LOOK_AGAIN = """
UPDATE unmatched SET looks = 0 WHERE looks IS NULL AND dropped_at IS NULL AND seq = ANY(ARRAY(
    SELECT u.seq FROM unmatched u WHERE u.named = ANY(%(ids)s::int8[])
    UNION ALL
    SELECT u.seq FROM unaccepted t JOIN unmatched u ON u.provider_id = t.provider_id
        AND u.provider = t.provider WHERE t.message_id = ANY(%(ids)s::int8[])
))
"""
"""Receipts that were kept as their message was about to be repeated: no step of it will look for them."""

_LEFT_TO_OTHERS = f"""
SELECT 1 FROM message m WHERE m.owner = %(log)s AND m.state = {State.SENDING:d} AND {_FOREIGN} LIMIT 1
"""
_BEGIN_LEFT_OVER = f"""
INSERT INTO worker (name, began_at, format, lease, ended)
SELECT name, began_at, format, lease, '{LEFT_OVER}' FROM worker WHERE id = %s RETURNING id
"""
_NO_LOG = f"UPDATE worker SET settled = id << {LOG_BITS} WHERE id = %s"
_LEAVE = f"""
UPDATE message m SET owner = %(left_over)s
WHERE m.owner = %(log)s AND m.state = {State.SENDING:d} AND {_FOREIGN}
"""
_MINE = f"""
SELECT {ENTRY}, m.state FROM message m WHERE m.owner = ANY(%s::int8[]) AND m.state = ANY(%s::int2[])
ORDER BY m.id
"""
_DOUBTS = """
SELECT DISTINCT ON (u.message_id) u.message_id, u.reason
FROM unnest(%s::int8[], %s::int4[]) AS s (id, key)
JOIN unaccepted u ON u.message_id = s.id AND u.key = s.key AND u.verdict = 'in_doubt'
ORDER BY u.message_id, u.number DESC
"""
_REPORTING = f"""
SELECT e.message_id FROM worker w JOIN event e ON e.seq > w.settled AND e.seq < (w.id + 1) << {LOG_BITS}
WHERE w.id = ANY(%s::int8[]) AND e.status IN ('sent', 'error') ORDER BY e.seq
"""
_EMPTY = f"""
SELECT w.id FROM worker w WHERE w.ended IS NOT NULL AND w.id > 0
    AND (w.holder IS NOT DISTINCT FROM %(me)s
        OR NOT EXISTS (SELECT 1 FROM worker h WHERE h.id = w.holder AND h.ended IS NULL))
    AND NOT {_HAS_EVENTS} AND NOT {_HAS_MESSAGES} AND NOT {ATTEMPTS_MAY_GO_ON.format("w")}
ORDER BY w.id LIMIT {{most}}
"""
_LOCK = "SELECT id FROM worker WHERE id = ANY(%s::int8[]) ORDER BY id FOR UPDATE SKIP LOCKED"
_STILL_EMPTY = f"""
SELECT w.id FROM worker w WHERE w.id = ANY(%s::int8[]) AND NOT {_HAS_EVENTS} AND NOT {_HAS_MESSAGES}
"""
_KEEP_NAMES = (
    "INSERT INTO former (id, name, ended_at) SELECT id, name, %s FROM worker WHERE id = ANY(%s::int8[])"
)
_FOLD = """
WITH gone AS (DELETE FROM worker WHERE id = ANY(%s::int8[]) RETURNING id, taken, pruned, forgotten)
UPDATE worker w SET taken = w.taken + s.taken, pruned = w.pruned + s.pruned,
    forgotten = w.forgotten + s.forgotten, commits = greatest(w.commits, s.id)
FROM (SELECT max(id) AS id, sum(taken)::int8 AS taken, sum(pruned)::int8 AS pruned,
    sum(forgotten)::int8 AS forgotten FROM gone) AS s
WHERE w.id = 0
"""
NOTHING_LEFT = Recovery([], [], 0, [])
"""What there is to go on with where nobody left anything."""

MOST_FOLDED = 100
"""Rows of ended workers that one commit deletes at most."""


class _Orphan(NamedTuple):
    """A worker that ended, of whom nobody has what it left; `has_mine`: also messages for this worker."""

    id: int
    name: str
    how: str
    holder: int | None
    has_events: bool
    has_mine: bool
    has_messages: bool


def adopt(
    db: Db,
    worker: int,
    now: int,
    providers: Collection[str],
    others: Collection[str],
    *,
    over: Collection[int] = (),
) -> Recovery:
    """Adopt what ended workers left, but for messages under way at providers that only others have.

    `others` are the providers that other workers have (see `elsewhere`). What was READY waits, due now. A
    lease ends after every attempt that it allowed, so nothing is under way any more of what is in doubt.
    `over`: workers that an operator ended, and whose attempts are over.
    """
    foreign = sorted(frozenset(others).difference(providers))
    values = {"me": worker, "foreign": foreign, "over": list(over)}
    rows = db.execute(_ORPHANED, values).fetchall()
    adopted = [
        each
        for each in map(_Orphan._make, rows)
        if (each.has_events or each.has_mine)
        and db.execute(_ADOPT, (worker, each.id, each.holder)).rowcount == 1
    ]
    logs = [each.id for each in adopted]
    for log in logs:
        _leave_to_others(db, log, foreign)
    if not logs:
        return NOTHING_LEFT
    ended = [EndedWorker(each.name, in_order=each.how in {RELEASED, LEFT_OVER}) for each in adopted]
    return _put_in_order(db, logs, now, frozenset(providers).union(others))._replace(ended=ended)


def adopt_all(
    db: Db,
    worker: int,
    now: int,
    providers: Collection[str],
    others: Collection[str],
    *,
    over: Collection[int] = (),
) -> Recovery:
    """The same at the start; what this worker had before then goes on as well."""
    adopt(db, worker, now, providers, others, over=over)
    logs = [id_ for (id_,) in db.execute(_HELD_BY, (worker,))]
    return _put_in_order(db, logs, now, frozenset(providers).union(others))


def _put_in_order(db: Db, logs: Sequence[int], now: int, known: Collection[str]) -> Recovery:
    """Bring the messages of workers into states to continue from."""
    interrupted = db.execute(_INTERRUPTED, (logs, now)).fetchall()
    if interrupted:
        db.execute(_LOOK_AGAIN, {"ids": [id_ for id_, *_ in interrupted]})
    held = _settle_homeless(db, interrupted, known, now)
    mine = db.execute(_MINE, (logs, [int(State.TAKEN), int(State.SENDING)])).fetchall()
    taken = [entry_of(row) for *row, state in mine if state == State.TAKEN]
    if taken:  # these are known now; what is given from here on is found by the next look
        db.execute("DELETE FROM given WHERE id = ANY(%s::int8[])", ([entry.id for entry in taken],))
    reporting = dict.fromkeys(id_ for (id_,) in db.execute(_REPORTING, (logs,)))
    return Recovery(
        taken,
        [*_in_doubt(db, [row for *row, state in mine if state == State.SENDING]), *held],
        len(interrupted) - len(held),
        list(reporting),
    )


def _leave_to_others(db: Db, log: int, foreign: Sequence[str]) -> None:
    """Give what is under way at providers that only others have to a worker's row that they will adopt."""
    values = {"log": log, "foreign": foreign}
    if db.execute(_LEFT_TO_OTHERS, values).fetchone():
        (left_over,) = db.execute(_BEGIN_LEFT_OVER, (log,)).fetchone() or (0,)
        db.execute(_NO_LOG, (left_over,))
        db.execute(_LEAVE, values | {"left_over": left_over})


def _settle_homeless(
    db: Db, interrupted: Sequence[tuple[int, str, bool]], known: Collection[str], now: int
) -> list[Doubtful]:
    """Have waiting messages leave providers that nobody has; those in doubt are held, and returned."""
    homeless = [(id_, doubt) for id_, provider, doubt in interrupted if provider and provider not in known]
    move_away(db, [id_ for id_, doubt in homeless if not doubt], now, transitions.left)
    held = sorted(id_ for id_, doubt in homeless if doubt)
    hold_in_doubt(db, held)
    return [Doubtful(entry, State.IN_DOUBT) for entry in entries_of(db, held, State.IN_DOUBT)] if held else []


def _in_doubt(db: Db, rows: Sequence[Sequence[object]]) -> list[Doubtful]:
    entries = [entry_of(row) for row in rows]
    if not entries:
        return []
    keys = [entry.id for entry in entries], [entry.key for entry in entries]
    reasons: dict[int, str | None] = dict(db.execute(_DOUBTS, keys).fetchall())
    return [Doubtful(entry, State.SENDING, reasons.get(entry.id)) for entry in entries]


def fold(db: Db, worker: int, now: int, instant: int | None, over: Collection[int]) -> None:
    """Delete the rows of ended workers of whom nothing is left but sums and their names, which are kept.

    Nobody puts anything into an inbox of theirs meanwhile: that needs the row. `instant` is of the database's
    clock.
    """
    empty = [
        id_ for (id_,) in db.execute(_EMPTY.format(most=MOST_FOLDED), {"me": worker, "over": list(over)})
    ]
    if not empty:
        return
    locked = [id_ for (id_,) in db.execute(_LOCK, (empty,))]
    still = [id_ for (id_,) in db.execute(_STILL_EMPTY, (locked,))]
    if still:
        keep_providers(db, still, instant)
        db.execute(_KEEP_NAMES, (now, still))
        db.execute(_FOLD, (still,))
