"""The pauses, and the messages that wait for their ends.

A message that is paused waits for the end of one pause (`runtime.waits.end_of_pause`), and is due when it
expires. When the pause ends, it is due at once; another pause may apply to it then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deliveryd.journal.pauses import RECENT, KnownIds, Pause, PausedMessages, PauseKind
from deliveryd.journal.rows import IDS, to_json
from deliveryd.journal.sql.db import Db
from deliveryd.runtime import waits
from deliveryd.states import State

IS_PAUSED = (
    f"waits_for >= '{waits.PAUSED_FROM}' AND waits_for < '{waits.PAUSED_BELOW}' AND due_at IS NOT NULL"
)
"""Of a message: whether it is paused."""

_ALL = 'SELECT kind, key, since, until, "user", caller, reason FROM pause ORDER BY since, kind, key'
_BEGIN = """
INSERT INTO pause (kind, key, since, until, "user", caller, reason) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, key) DO UPDATE SET until = excluded.until, "user" = excluded."user",
    caller = excluded.caller, reason = excluded.reason
"""
_END = "DELETE FROM pause WHERE kind = ? AND key = ?"
_OVER = f"{_ALL.removesuffix(' ORDER BY since, kind, key')} WHERE until <= ?"
_SHIFT = "UPDATE pause SET since = since - ?1, until = until - ?1"
_BOUND = "UPDATE pause SET until = until - (since - ?1), since = ?1 WHERE since > ?1"
_COUNT = f"SELECT waits_for, count(*) FROM message WHERE {IS_PAUSED} GROUP BY waits_for"  # noqa: S608  # constants
_PARK = """
UPDATE message SET waits_for = ?1 WHERE id IN (SELECT id FROM message
    WHERE waits_for IN (SELECT value FROM json_each(?2)) AND due_at IS NOT NULL LIMIT ?3)
"""
_UNBINDABLE = f"""
SELECT id FROM message INDEXED BY message_held
WHERE {IS_PAUSED} AND doubt = ? AND provider <> '' AND provider NOT IN (SELECT value FROM json_each(?))
"""  # noqa: S608  # constants
_STATE = "SELECT state, coalesce(confirm_by, failed_next) FROM main.message WHERE id = ?"
_TAKEN_LATELY = f"""
SELECT 1 FROM (SELECT settings_id FROM message ORDER BY id DESC LIMIT {RECENT}) AS latest
WHERE settings_id = ? LIMIT 1
"""  # noqa: S608  # a constant


def pauses(db: Db) -> tuple[Pause, ...]:
    """All pauses, the oldest first."""
    return tuple(Pause(PauseKind(kind), *rest) for kind, *rest in db.execute(_ALL))


def begin_pause(db: Db, pause: Pause) -> None:
    """Pause something; what is paused already stays so since then, with the new end and reason."""
    db.execute(_BEGIN, pause)


def end_pause(db: Db, kind: PauseKind, key: str) -> bool:
    """Resume something; return whether it was paused."""
    return db.execute(_END, (kind, key)).rowcount > 0


def ended_pauses(db: Db, now: int) -> list[Pause]:
    """The pauses whose time is over."""
    return [Pause(PauseKind(kind), *rest) for kind, *rest in db.execute(_OVER, (now,))]


def retime_pauses(db: Db, back: int, now: int) -> None:
    """Let pauses last as long as ordered after the clock was set; none began later than now."""
    if back:
        db.execute(_SHIFT, (back,))
    db.execute(_BOUND, (now,))


def count_paused(db: Db) -> dict[str, int]:
    """How many messages are paused, by what they wait for: read from an index."""
    return dict(db.execute(_COUNT).fetchall())


def park(db: Db, waits_for: str, instead_of: Collection[str], limit: int) -> int:
    """Let messages wait for the end of a pause instead of these; return how many, `limit` at most."""
    return db.execute(_PARK, (waits_for, to_json(list(instead_of)), limit)).rowcount


def paused_elsewhere(db: Db, doubt: int, providers: Collection[str]) -> list[int]:
    """The paused messages that are bound to a provider that isn't among these, in doubt (1) or not (0)."""
    return [id_ for (id_,) in db.execute(_UNBINDABLE, (doubt, to_json(list(providers))))]


def hindrance_to_pause(db: Db, message_id: int) -> str | None:
    """Why a message can't be paused: it has ended. None: it can, even if it wasn't taken yet."""
    row = db.execute(_STATE, (message_id,)).fetchone()
    if row is None:
        is_forgotten = db.execute("SELECT 1 FROM main.tombstone WHERE id = ?", (message_id,)).fetchone()
        return "it has ended long ago" if is_forgotten else None
    state, may_go_on = State(row[0]), row[1] is not None  # a sent one, by a receipt
    if state in (State.DELIVERED, State.FAILED) or (state is State.SENT and not may_go_on):
        return f"it has ended: it is {state.name.lower()}"
    return None


# beside a worker, or without one


def paused_messages(db: Db) -> Sequence[PausedMessages]:
    """All pauses with their messages, the oldest first."""
    counts = count_paused(db)
    return [PausedMessages(pause, counts.get(pause.waits_for, 0)) for pause in pauses(db)]


def known_ids(db: Db, messages: Collection[int], settings: Collection[int]) -> KnownIds:
    """Look ids up."""
    there = db.execute(
        f"SELECT id FROM message WHERE id IN {IDS}",  # noqa: S608  # a constant
        (to_json(list(messages)),),
    )
    return KnownIds(
        frozenset(id_ for (id_,) in there),
        frozenset(id_ for id_ in settings if db.execute(_TAKEN_LATELY, (id_,)).fetchone()),
    )
