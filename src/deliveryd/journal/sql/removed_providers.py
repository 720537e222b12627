"""Providers that are removed: what waits there leaves them, and what else belongs to them is counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from deliveryd import transitions
from deliveryd.journal.base import Left, Orphans
from deliveryd.journal.rows import ENTRY, entry_of, progress_of, to_json
from deliveryd.journal.sql import statements
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.pauses import IS_PAUSED
from deliveryd.model import Entry, Transition
from deliveryd.runtime import waits
from deliveryd.states import State

_IN_DOUBT = f"""
SELECT count(*) FROM message
WHERE ended_at IS NULL AND due_at IS NULL AND (state = {State.IN_DOUBT:d} OR doubt = 1) AND provider = ?
"""  # noqa: S608  # a constant
_WAITING = f"""
SELECT doubt, count(*) FROM (
    SELECT doubt FROM message WHERE waits_for IN (SELECT value FROM json_each(?1)) AND due_at IS NOT NULL
    UNION ALL SELECT doubt FROM message WHERE waits_at = ?2
    UNION ALL SELECT doubt FROM message INDEXED BY message_held WHERE {IS_PAUSED} AND provider = ?2
) GROUP BY doubt
"""  # noqa: S608  # constants
_UNCONFIRMED = f"""
SELECT count(*) FROM message WHERE ended_at >= ? AND state = {State.SENT:d} AND provider = ?
"""  # noqa: S608  # a constant
_DEADLINES = "SELECT count(*) FROM message WHERE confirms_at = ?"


def count_orphans(provider: str, sent_since: int, db: Db) -> Orphans:
    """Count what the removal of a provider would leave."""
    waiting = dict(db.execute(_WAITING, (to_json(keys_of([provider], WAITING_KEYS)), provider)))
    (in_doubt,) = db.execute(_IN_DOUBT, (provider,)).fetchone()
    (unconfirmed,) = db.execute(_UNCONFIRMED, (sent_since, provider)).fetchone()
    (deadlines,) = db.execute(_DEADLINES, (provider,)).fetchone()
    return Orphans(in_doubt + waiting.get(1, 0), waiting.get(0, 0), unconfirmed, deadlines)


FREE = (waits.room, waits.repeat, waits.recovery)
"""What messages wait for that are bound to a provider, and that another one could take."""

WAITING_KEYS = (*FREE, waits.alone)
"""What messages wait for that are bound to a provider."""

LEFT_AT_ONCE = 1000
"""Messages that are read at a time."""

_AT = f"""
SELECT {ENTRY} FROM message WHERE id IN (
    SELECT id FROM message WHERE waits_for IN (SELECT value FROM json_each(?1)) AND due_at IS NOT NULL
        AND doubt = ?3
    UNION ALL SELECT id FROM message WHERE waits_at IN (SELECT value FROM json_each(?2)) AND doubt = ?3
    LIMIT ?4)
"""  # noqa: S608  # constants


def release(db: Db, provider: str, at: int, limit: int) -> int:
    """Let messages that wait for a provider be due at any; return how many."""
    found = _at(db, [provider], FREE, 0, limit)
    return _move(db, [transitions.released(entry, at) for entry in found])


def leave(db: Db, providers: Collection[str], at: int, limit: int) -> Left:
    """Hold what is in doubt at removed providers, and let all else that waits there leave them."""
    doubtful = _at(db, providers, WAITING_KEYS, 1, limit)
    held = _move(db, [transitions.held_without_provider(entry, State.WAITING, at) for entry in doubtful])
    free = _at(db, providers, WAITING_KEYS, 0, limit)
    return Left(held, _move(db, [transitions.left(entry, at) for entry in free]))


def leave_all(db: Db, providers: Collection[str], at: int) -> None:
    """The same, however many messages wait there."""
    while max(leave(db, providers, at, LEFT_AT_ONCE)) == LEFT_AT_ONCE:
        pass


def keys_of(providers: Collection[str], keys: Sequence[Callable[[str], str]]) -> list[str]:
    """What messages wait for that are bound to these providers."""
    return [key(provider) for provider in providers for key in keys]


def _at(
    db: Db,
    providers: Collection[str],
    keys: Sequence[Callable[[str], str]],
    doubt: int,
    limit: int,
) -> list[Entry]:
    values = to_json(keys_of(providers, keys)), to_json(list(providers)), doubt, limit
    return [entry_of(row) for row in db.execute(_AT, values)]


def _move(db: Db, steps: Sequence[Transition]) -> int:
    rows = [(*progress_of(step), step.waits_for, step.entry.id, step.before) for step in steps]
    return db.executemany(statements.TO_WAIT, rows).rowcount if rows else 0
