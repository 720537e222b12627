"""What waits: nobody's until its time has come, then that of the worker who takes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from deliveryd import transitions
from deliveryd.journal.base import MOST_COUNTED, Doubtful, Due, Left
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.steps import IN_DOUBT
from deliveryd.journal.postgresql.values import ENTRY, LOCATED, arrays
from deliveryd.journal.rows import entry_of, spent_text
from deliveryd.model import Entry, Transition
from deliveryd.runtime import waits
from deliveryd.states import State

IS_PAUSED = f"(waits_for >= '{waits.PAUSED_FROM}' AND waits_for < '{waits.PAUSED_BELOW}')"
"""SQL for whether a waiting message is paused; NULL when it waits for nothing."""

MINE = "provider <> ALL(%(foreign)s::text[])"
"""SQL for whether a worker may touch a waiting message: it isn't bound to what only others have."""

_DUE = """
SELECT id FROM waiting WHERE waits_for IS NULL AND provider = %s AND due_at <= %s
ORDER BY due_at, id LIMIT %s FOR UPDATE SKIP LOCKED
"""
_LEFT = """
SELECT count(*) FROM (SELECT 1 FROM waiting
    WHERE waits_for IS NULL AND provider = %s AND due_at <= %s LIMIT %s) AS due
"""
_NEXT_DUE = "SELECT min(due_at) FROM waiting WHERE waits_for IS NULL AND provider = %s"
_OVERDUE = f"""
SELECT id, {IS_PAUSED} FROM waiting WHERE waits_for IS NOT NULL AND due_at <= %(now)s AND {MINE}
ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
_NEXT_OVERDUE = f"SELECT min(due_at) FROM waiting WHERE waits_for IS NOT NULL AND {MINE}"
_WAITING_FOR = f"""
SELECT id FROM waiting WHERE waits_for = %(waits_for)s AND {MINE}
ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
_MAKE_READY = f"""
UPDATE message m SET state = {transitions.DUE.after:d}, owner = %s
FROM unnest(%s::int8[]) WITH ORDINALITY AS wanted (id, place) JOIN seen ON seen.id = wanted.id
WHERE m.day = seen.day AND m.id = seen.id AND m.state = {transitions.DUE.before:d}
RETURNING wanted.place, {ENTRY}
"""
_TAKE_OUT = "DELETE FROM waiting WHERE id = ANY(%s::int8[])"
_PARK = f"""
UPDATE waiting SET waits_for = %(waits_for)s WHERE id = ANY(ARRAY(
    SELECT id FROM waiting WHERE waits_for = ANY(%(names)s::text[]) AND {MINE}
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""
_AT_PROVIDERS = """
SELECT id FROM waiting WHERE {doubt} AND (waits_for = ANY(%(names)s::text[])
    OR (waits_for IS NULL AND provider = ANY(%(providers)s::text[])))
ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
_BOUND = """
WITH RECURSIVE found (provider) AS (
    SELECT min(provider) FROM waiting WHERE waits_for IS NULL AND provider > ''
    UNION ALL SELECT (SELECT min(w.provider) FROM waiting w
        WHERE w.waits_for IS NULL AND w.provider > found.provider)
    FROM found WHERE found.provider IS NOT NULL)
SELECT provider FROM found WHERE provider IS NOT NULL
"""
"""Finds by one step in the index for each provider, however many messages wait there."""

_LEAVE = f"""
UPDATE message m SET provider = '', tries = 0, key = s.key, number = s.number, spent = s.spent,
    content = CASE WHEN m.key = s.key THEN m.content END, digest = CASE WHEN m.key = s.key THEN m.digest END
FROM unnest(%s::int8[], %s::int4[], %s::int4[], %s::text[]) AS s (id, key, number, spent)
JOIN seen ON seen.id = s.id WHERE m.day = seen.day AND m.id = seen.id AND m.state = {State.WAITING:d}
"""
_LEAVE_WAITING = "UPDATE waiting SET provider = '', due_at = %s, waits_for = NULL WHERE id = ANY(%s::int8[])"
_HOLD = f"""
UPDATE message m SET state = {transitions.CHANNEL_REMOVED.after:d}, owner = {IN_DOUBT}
FROM unnest(%s::int8[]) AS wanted (id) JOIN seen ON seen.id = wanted.id
WHERE m.day = seen.day AND m.id = seen.id AND m.state = {transitions.CHANNEL_REMOVED.before:d}
"""
_RETIME = f"""
UPDATE waiting SET due_at = least(due_at - %(back)s, %(latest)s)
WHERE (%(back)s > 0 OR due_at > %(latest)s) AND {IS_PAUSED} IS NOT TRUE
"""
_HASTEN = """
UPDATE waiting w SET due_at = s.at FROM unnest(%s::int8[], %s::int8[]) AS s (id, at)
WHERE w.id = s.id AND w.due_at > s.at
"""
_HELD = f"""
SELECT {ENTRY}, (SELECT u.reason FROM unaccepted u WHERE u.message_id = m.id AND u.day = m.day
        AND u.key = m.key AND u.verdict = 'in_doubt' ORDER BY u.number DESC LIMIT 1)
FROM message m WHERE m.owner = {IN_DOUBT} AND m.id > %s
    AND (%s::text[] IS NULL OR m.provider = ANY(%s::text[])) ORDER BY m.id LIMIT %s
"""


def take_due(db: Db, worker: int, now: int, room: Mapping[str, int]) -> Due:
    """Make waiting messages READY whose time has come."""
    ids: list[int] = []
    coming: list[int] = []
    left = 0
    for provider, limit in room.items():
        found = [id_ for (id_,) in db.execute(_DUE, (provider, now, limit))]
        ids += found
        if len(found) >= limit:
            _take_out(db, found)
            left += _number(db, _LEFT, (provider, now, MOST_COUNTED)) or 0
            continue
        _take_out(db, found)
        next_due = _number(db, _NEXT_DUE, (provider,))
        coming += [next_due] if next_due is not None else []
    return Due(_made_ready(db, worker, ids), min(coming, default=None), left)


def take_overdue(db: Db, worker: int, now: int, limit: int, foreign: Collection[str]) -> Due:
    """Make messages READY that have waited for something for long enough."""
    values = {"now": now, "limit": limit, "foreign": list(foreign)}
    rows = db.execute(_OVERDUE, values).fetchall()
    ids = [id_ for id_, _ in rows]
    _take_out(db, ids)
    entries = _made_ready(db, worker, ids)
    return Due(entries, _number(db, _NEXT_OVERDUE, values), paused=sum(is_paused for _, is_paused in rows))


def take_waiting_for(
    db: Db, worker: int, waits_for: Sequence[str], limit: int, foreign: Collection[str]
) -> list[Entry]:
    """Make messages READY that wait for one of these."""
    ids: list[int] = []
    for each in waits_for:
        if len(ids) < limit:
            values = {"waits_for": each, "limit": limit - len(ids), "foreign": list(foreign)}
            ids += [id_ for (id_,) in db.execute(_WAITING_FOR, values)]
    _take_out(db, ids)
    return _made_ready(db, worker, ids)


def park(db: Db, waits_for: str, instead_of: Collection[str], limit: int, foreign: Collection[str]) -> int:
    """Let messages wait for the end of a pause instead of these."""
    values = {"waits_for": waits_for, "names": list(instead_of), "limit": limit, "foreign": list(foreign)}
    return db.execute(_PARK, values).rowcount


def release(db: Db, provider: str, at: int, limit: int) -> int:
    """Let messages be due at any provider that wait for this one."""
    names = [waits.room(provider), waits.repeat(provider), waits.recovery(provider)]
    ids = _at_providers(db, "NOT doubt", names, [provider], limit)
    move_away(db, ids, at, transitions.released)
    return len(ids)


def leave(db: Db, providers: Collection[str], at: int, limit: int) -> Left:
    """Hold what is in doubt at removed providers, and let all else that waits there be due at any other."""
    names = [
        key(provider)
        for provider in providers
        for key in (waits.room, waits.repeat, waits.recovery, waits.alone)
    ]
    doubtful = _at_providers(db, "doubt", names, providers, limit)
    hold_in_doubt(db, doubtful)
    free = _at_providers(db, "NOT doubt", names, providers, limit)
    move_away(db, free, at, transitions.left)
    return Left(len(doubtful), len(free))


def bound_to(db: Db) -> frozenset[str]:
    """The providers at which messages wait for their time alone."""
    return frozenset(name for (name,) in db.execute(_BOUND))


def move_away(db: Db, ids: Sequence[int], at: int, step: Callable[[Entry, int], Transition]) -> None:
    """Have waiting messages take the step by which they are due at any provider."""
    left = [step(entry, at).entry for entry in entries_of(db, ids, State.WAITING)] if ids else []
    if left:
        db.execute(_LEAVE_WAITING, (at, [each.id for each in left]))
        db.execute(_LEAVE, arrays([(each.id, each.key, each.number, spent_text(each)) for each in left]))


def hold_in_doubt(db: Db, ids: Sequence[int]) -> None:
    """Hold waiting messages in doubt."""
    if ids:
        _take_out(db, ids)
        db.execute(_HOLD, (list(ids),))


def retime(db: Db, back: int, latest: int) -> None:
    """Bring due times in line with a clock that was put back, and let none be later than `latest`."""
    db.execute(_RETIME, {"back": back, "latest": latest})


def hasten(db: Db, due_at: Mapping[int, int]) -> None:
    """Let waiting messages be due at these instants, if they aren't earlier."""
    db.execute(_HASTEN, (list(due_at), list(due_at.values())))


def held(db: Db, providers: Collection[str] | None, after: int, limit: int) -> list[Doubtful]:
    """Return messages held in doubt at these providers, or at any, with the reasons."""
    names = None if providers is None else list(providers)
    rows = db.execute(_HELD, (after, names, names, limit))
    return [Doubtful(entry_of(row), State.IN_DOUBT, reason) for *row, reason in rows]


def entries_of(db: Db, ids: Sequence[int], state: State) -> list[Entry]:
    """Return those of these messages that are in a state, by their ids."""
    query = (
        f"SELECT {ENTRY} FROM unnest(%s::int8[]) AS wanted (id) {LOCATED} WHERE m.state = %s ORDER BY m.id"
    )
    return [entry_of(row) for row in db.execute(query.format(id="wanted.id"), (list(ids), state))]


def _at_providers(
    db: Db, doubt: str, names: Sequence[str], providers: Collection[str], limit: int
) -> list[int]:
    values = {"names": list(names), "providers": list(providers), "limit": limit}
    return [id_ for (id_,) in db.execute(_AT_PROVIDERS.format(doubt=doubt), values)]


def _take_out(db: Db, ids: Sequence[int]) -> None:
    if ids:
        db.execute(_TAKE_OUT, (list(ids),))


def _made_ready(db: Db, worker: int, ids: Sequence[int]) -> list[Entry]:
    """Make messages READY; return them in this order."""
    if not ids:
        return []
    rows: list[tuple[Any, ...]] = db.execute(_MAKE_READY, (worker, list(ids))).fetchall()
    return [entry_of(row[1:]) for row in sorted(rows, key=lambda row: row[0])]


def _number(db: Db, query: str, values: Sequence[Any] | Mapping[str, Any]) -> int | None:
    row = db.execute(query, values).fetchone()
    return None if row is None else row[0]
