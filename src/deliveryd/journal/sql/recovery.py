"""What an earlier run left, brought into states to continue from; and providers that are removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from deliveryd import transitions
from deliveryd.journal.base import Doubtful, Left, Orphans, Recovery
from deliveryd.journal.rows import ENTRY, SENT_IN_PART, entry_of, progress_of, to_json
from deliveryd.journal.sql import statements
from deliveryd.journal.sql.account import open_states
from deliveryd.journal.sql.db import Db, each_of
from deliveryd.journal.sql.outbox import WATERMARK
from deliveryd.journal.sql.pauses import IS_PAUSED, count_paused, paused_elsewhere
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.model import AT_ONCE, Entry, Transition
from deliveryd.runtime import waits
from deliveryd.states import State

_MOVING = "ended_at IS NULL AND due_at IS NULL"
_OPEN = f"SELECT {ENTRY} FROM message WHERE {_MOVING} AND state = ? ORDER BY id"  # noqa: S608  # constants
_TRIED = f"SELECT {ENTRY} FROM message WHERE {_MOVING} AND state = ? AND (stay_tries > 0 OR stay > 1)"  # noqa: S608
_HELD = f"""
SELECT {ENTRY} FROM message WHERE ended_at IS NULL AND due_at IS NULL AND state = {State.IN_DOUBT:d}
    AND provider IN (SELECT value FROM json_each(?)) AND id > ? ORDER BY id LIMIT ?
"""  # noqa: S608  # constants
_PUT_OFF = f"""
SELECT {ENTRY} FROM message WHERE ended_at IS NULL AND due_at IS NULL AND state = {State.IN_DOUBT:d}
    AND doubt = 0 AND provider IN (SELECT value FROM json_each(?)) LIMIT ?
"""  # noqa: S608  # constants
_INTERRUPTED = f"""
UPDATE message SET state = {transitions.RUN_INTERRUPTED.after:d}, due_at = {AT_ONCE}, waits_for = NULL
WHERE {_MOVING} AND state = {transitions.RUN_INTERRUPTED.before:d}
"""  # noqa: S608  # constants
# Messages that wait for an answer: it hasn't been requested since the restart.
_DUE_NOW = f"""
UPDATE message SET due_at = {AT_ONCE}, waits_for = NULL WHERE waits_for IS NOT NULL AND due_at IS NOT NULL
    AND waits_for NOT IN (SELECT value FROM json_each(?)) AND NOT ({IS_PAUSED})
"""  # noqa: S608  # constants
_NEXT_WAITED_AT = "SELECT min(waits_at) FROM message WHERE waits_at > ?"
_HOLD_PAUSED = f"""
UPDATE message SET state = {transitions.CHANNEL_REMOVED.after:d}, due_at = NULL, waits_for = NULL WHERE id = ?
"""  # noqa: S608  # a constant
_WAKE_PAUSED = f"UPDATE message SET due_at = {AT_ONCE}, waits_for = NULL WHERE id = ?"  # noqa: S608  # a constant


def recover(db: Db, now: int, providers: Collection[str], matching: Matching) -> Recovery:
    """Bring the messages of an earlier run into states to continue from.

    Receipts were kept for those that were about to be repeated: they are applied, as nothing else may repeat
    them.
    """
    tried = [entry_of(row) for row in db.execute(_TRIED, (transitions.RUN_INTERRUPTED.before,))]
    db.execute(_INTERRUPTED)
    effects = matching.match_at_rest(db, tried, now)
    db.execute(_DUE_NOW, (to_json(keys_of(providers, WAITING_KEYS)),))
    db.executemany(_HOLD_PAUSED, [(id_,) for id_ in paused_elsewhere(db, 1, providers)])
    db.executemany(_WAKE_PAUSED, [(id_,) for id_ in paused_elsewhere(db, 0, providers)])
    leave_all(db, each_of(db, _NEXT_WAITED_AT) - set(providers), now)
    taken = [entry_of(row) for row in db.execute(_OPEN, (State.TAKEN,))]
    doubtful = [
        Doubtful(entry, state, latest_doubt(db, entry))
        for state in (State.SENDING, State.IN_DOUBT)
        for entry in map(entry_of, db.execute(_OPEN, (state,)))
    ]
    paused = count_paused(db)
    waiting = open_states(db).get(State.WAITING, 0) - sum(paused.values())
    reporting = db.execute(
        f"SELECT message_id FROM event WHERE seq > {WATERMARK} AND status IN ('sent', 'error') ORDER BY seq"  # noqa: S608
    )
    return Recovery(
        taken,
        doubtful,
        waiting,
        list(dict.fromkeys(row[0] for row in reporting)),
        paused=paused,
        effects=tuple(effect._replace(waiting=0, paused=0) for effect in effects),
    )


def left_in_logs(found: Sequence[Recovery]) -> Recovery:
    """What was left in several logs."""
    if len(found) == 1:
        return found[0]
    paused: Counter[str] = Counter()
    for each in found:
        paused.update(each.paused)
    return Recovery(
        [entry for each in found for entry in each.taken],
        [doubtful for each in found for doubtful in each.doubtful],
        sum(each.waiting for each in found),
        [id_ for each in found for id_ in each.reporting],
        paused=paused,
        effects=tuple(effect for each in found for effect in each.effects),
    )


def held(db: Db, providers: Collection[str], after: int, limit: int) -> list[Doubtful]:
    """Return messages held in doubt at these providers, with the reasons."""
    entries = map(entry_of, db.execute(_HELD, (to_json(list(providers)), after, limit)))
    return [Doubtful(entry, State.IN_DOUBT, latest_doubt(db, entry)) for entry in entries]


def latest_doubt(db: Db, entry: Entry) -> str | None:
    """Return the reason of the latest try in doubt under a message's key."""
    return _latest_doubt(db, entry.id, entry.stay)


def _latest_doubt(db: Db, message_id: int, key: int) -> str | None:
    row = db.execute(
        "SELECT reason FROM unaccepted WHERE message_id = ? AND stay = ? AND verdict = 'in_doubt'"
        " ORDER BY stay_tries DESC LIMIT 1",
        (message_id, key),
    ).fetchone()
    return None if row is None else row[0]


def id_in_doubt(db: Db, message_id: int, key: int) -> str | None:
    """Return the provider's id of a message as the latest try in doubt under a key had it."""
    row = db.execute(
        "SELECT provider_id FROM unaccepted WHERE message_id = ? AND stay = ? AND verdict = 'in_doubt'"
        " AND provider_id IS NOT NULL ORDER BY stay_tries DESC LIMIT 1",
        (message_id, key),
    ).fetchone()
    return None if row is None else row[0]


def repeat_is_ordered(db: Db, message_id: int, key: int) -> bool:
    """Whether an operator ordered the repeat of a message since its latest try in doubt under a key."""
    return (_latest_doubt(db, message_id, key) or "").startswith(transitions.REPEAT_ORDERED)


_IN_DOUBT = f"""
SELECT count(*) FROM message
WHERE ended_at IS NULL AND due_at IS NULL AND provider = ?
    AND (state = {State.IN_DOUBT:d} OR (doubt = 1 AND NOT {SENT_IN_PART}))
"""  # noqa: S608  # a constant
_DOUBT = f"iif({SENT_IN_PART}, 0, doubt)"
_WAITING = f"""
SELECT doubt, count(*) FROM (
    SELECT {_DOUBT} AS doubt FROM message
    WHERE waits_for IN (SELECT value FROM json_each(?1)) AND due_at IS NOT NULL
    UNION ALL SELECT {_DOUBT} FROM message WHERE waits_at = ?2
    UNION ALL SELECT {_DOUBT} FROM message INDEXED BY message_held WHERE {IS_PAUSED} AND provider = ?2
    UNION ALL SELECT {_DOUBT} FROM message INDEXED BY message_held
        WHERE waits_for IN ('{waits.WINDOW}', '{waits.DIRECTORY}') AND due_at IS NOT NULL AND provider = ?2
    UNION ALL SELECT {_DOUBT} FROM message INDEXED BY message_held
        WHERE waits_for > 'customer ' AND waits_for < 'customer!' AND due_at IS NOT NULL AND provider = ?2
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
    return _move(db, [transitions.released(entry, State.WAITING, at) for entry in found])


def leave(db: Db, removed: Collection[str], disabled: Collection[str], at: int, limit: int) -> Left:
    """Hold what waits in doubt at removed providers; let all else that waits or is held be due at any.

    At disabled ones what is in doubt stays.
    """
    doubtful = _at(db, removed, WAITING_KEYS, 1, limit)
    held = _move(db, [transitions.held_without_provider(entry, State.WAITING, at) for entry in doubtful])
    providers = [*removed, *disabled]
    free = _at(db, providers, WAITING_KEYS, 0, limit)
    released = _move(db, [transitions.released(entry, State.WAITING, at) for entry in free])
    put_off = [entry_of(row) for row in db.execute(_PUT_OFF, (to_json(providers), limit))]
    resumed = _move(db, [transitions.released(entry, State.IN_DOUBT, at) for entry in put_off])
    return Left(held, released, resumed)


def leave_all(db: Db, removed: Collection[str], at: int) -> None:
    """The same for removed ones, however many messages wait there."""
    while max(leave(db, removed, (), at, LEFT_AT_ONCE)) == LEFT_AT_ONCE:
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
