"""What an earlier run left: brought into states to continue from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from deliveryd import transitions
from deliveryd.journal.base import Doubtful, Recovery
from deliveryd.journal.rows import ENTRY, entry_of, to_json
from deliveryd.journal.sql.account import open_states
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.outbox import WATERMARK
from deliveryd.journal.sql.pauses import IS_PAUSED, count_paused, paused_in_doubt_elsewhere
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.journal.sql.removed_providers import WAITING_KEYS, keys_of, leave_all
from deliveryd.model import Entry
from deliveryd.states import State

_MOVING = "ended_at IS NULL AND due_at IS NULL"
_OPEN = f"SELECT {ENTRY} FROM message WHERE {_MOVING} AND state = ? ORDER BY id"  # noqa: S608  # constants
_TRIED = f"SELECT {ENTRY} FROM message WHERE {_MOVING} AND state = ? AND (number > 0 OR key > 1)"  # noqa: S608
_HELD = f"""
SELECT {ENTRY} FROM message WHERE ended_at IS NULL AND due_at IS NULL AND state = {State.IN_DOUBT:d}
    AND provider IN (SELECT value FROM json_each(?)) AND id > ? ORDER BY id LIMIT ?
"""  # noqa: S608  # constants
_INTERRUPTED = f"""
UPDATE message SET state = {transitions.RUN_INTERRUPTED.after:d}, due_at = ?, waits_for = NULL
WHERE {_MOVING} AND state = {transitions.RUN_INTERRUPTED.before:d}
"""  # noqa: S608  # constants
_DUE_NOW = (  # messages that wait for an answer: nobody has asked for it since the restart
    "UPDATE message SET due_at = ?, waits_for = NULL WHERE waits_for IS NOT NULL AND due_at IS NOT NULL"  # noqa: S608
    f" AND waits_for NOT IN (SELECT value FROM json_each(?)) AND NOT ({IS_PAUSED})"
)
_HOLD_PAUSED = f"""
UPDATE message SET state = {transitions.CHANNEL_REMOVED.after:d}, due_at = NULL, waits_for = NULL WHERE id = ?
"""  # noqa: S608  # a constant


def recover(db: Db, now: int, providers: Collection[str], matching: Matching) -> Recovery:
    """Bring the messages of an earlier run into states to continue from.

    Receipts were kept for those that were about to be repeated: they are applied, as nothing else may repeat
    them.
    """
    tried = [entry_of(row) for row in db.execute(_TRIED, (transitions.RUN_INTERRUPTED.before,))]
    db.execute(_INTERRUPTED, (now,))
    effects = matching.match_at_rest(db, tried, now)
    db.execute(_DUE_NOW, (now, to_json(keys_of(providers, WAITING_KEYS))))
    leave_all(db, _providers_of_waiting(db) - set(providers), now)
    db.executemany(_HOLD_PAUSED, [(id_,) for id_ in paused_in_doubt_elsewhere(db, providers)])
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
    row = db.execute(
        "SELECT reason FROM unaccepted WHERE message_id = ? AND key = ? AND verdict = 'in_doubt'"
        " ORDER BY number DESC LIMIT 1",
        (entry.id, entry.key),
    ).fetchone()
    return None if row is None else row[0]


def id_in_doubt(db: Db, message_id: int, key: int) -> str | None:
    """Return the provider's id of a message as the latest try in doubt under a key had it."""
    row = db.execute(
        "SELECT provider_id FROM unaccepted WHERE message_id = ? AND key = ? AND verdict = 'in_doubt'"
        " AND provider_id IS NOT NULL ORDER BY number DESC LIMIT 1",
        (message_id, key),
    ).fetchone()
    return None if row is None else row[0]


def _providers_of_waiting(db: Db) -> set[str]:
    """Return the providers with waiting messages: one index seek for each, however many messages wait."""
    providers: set[str] = set()
    provider = ""
    while True:
        (provider,) = db.execute(
            "SELECT min(waits_at) FROM message WHERE waits_at > ?", (provider,)
        ).fetchone()
        if provider is None:
            return providers
        providers.add(provider)
