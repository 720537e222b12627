"""What operators paused, and the messages that wait for the ends of pauses."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deliveryd.journal.pauses import (
    RECENT,
    KnownIds,
    Pause,
    PausedMessages,
    PauseKind,
    hindrance_in_state,
)
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.values import LOCATED, VISIBLE, plain
from deliveryd.journal.postgresql.waiting import IS_PAUSED
from deliveryd.states import State

_COLUMNS = 'kind, key, since, until, "user", caller, reason'
_ALL = f"SELECT {_COLUMNS} FROM pause ORDER BY since, kind, key"
_BEGIN = f"""
INSERT INTO pause ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (kind, key) DO UPDATE SET until = excluded.until, "user" = excluded."user",
    caller = excluded.caller, reason = excluded.reason
"""
_END = "DELETE FROM pause WHERE kind = %s AND key = %s"
_END_OF = "DELETE FROM pause WHERE kind = %s AND key = ANY(%s::text[])"
_OVER = f"DELETE FROM pause WHERE until <= %s RETURNING {_COLUMNS}"
_BOUND = "UPDATE pause SET until = until - (since - %(now)s), since = %(now)s WHERE since > %(now)s"
_NOTE_CHANGE = "UPDATE version SET number = number + 1 WHERE kind = 'pauses'"
_COUNT = f"SELECT waits_for, count(*) FROM waiting WHERE {IS_PAUSED} GROUP BY waits_for"
_STATE = f"""
SELECT m.state, EXISTS (SELECT 1 FROM awaited a WHERE a.id = m.id)
FROM unnest(ARRAY[%s::int8]) AS wanted (id) {LOCATED.format(id="wanted.id")} WHERE {VISIBLE}
"""
_THERE = f"""
SELECT m.id FROM unnest(%s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")} WHERE {VISIBLE}
"""
_TAKEN_LATELY = f"""
SELECT DISTINCT settings_id FROM (
    SELECT m.settings_id FROM message m WHERE {VISIBLE} ORDER BY m.id DESC LIMIT %s) AS latest
WHERE settings_id = ANY(%s::int8[])
"""


def pauses(db: Db) -> tuple[Pause, ...]:
    """All pauses, the oldest first."""
    return tuple(Pause(PauseKind(kind), *rest) for kind, *rest in db.execute(_ALL))


def begin_pause(db: Db, pause: Pause) -> None:
    """Pause something; what is paused already stays so since then, with the new end and reason."""
    user, caller, reason = plain(pause.user), plain(pause.caller), plain(pause.reason)
    db.execute(_BEGIN, pause._replace(user=user, caller=caller, reason=reason))
    db.execute(_NOTE_CHANGE)


def end_pause(db: Db, kind: PauseKind, key: str) -> bool:
    """Resume something; return whether it was paused."""
    is_ended = db.execute(_END, (kind, plain(key))).rowcount > 0
    if is_ended:
        db.execute(_NOTE_CHANGE)
    return is_ended


def end_pauses_of(db: Db, ids: Sequence[int]) -> None:
    """Delete the pauses of messages that are forgotten."""
    if db.execute(_END_OF, (PauseKind.MESSAGE, [str(id_) for id_ in ids])).rowcount:
        db.execute(_NOTE_CHANGE)


def take_out_ended(db: Db, now: int) -> list[Pause]:
    """Delete the pauses whose time is over, and return them."""
    ended = [Pause(PauseKind(kind), *rest) for kind, *rest in db.execute(_OVER, (now,)).fetchall()]
    if ended:
        db.execute(_NOTE_CHANGE)
    return ended


def retime_pauses(db: Db, back: int, now: int) -> Sequence[Pause]:
    """Let pauses last as long as ordered after the clock was put back; none began later than now."""
    changed = 0
    if back:
        changed = db.execute("UPDATE pause SET since = since - %s, until = until - %s", (back, back)).rowcount
    if changed + db.execute(_BOUND, {"now": now}).rowcount:
        db.execute(_NOTE_CHANGE)
    return pauses(db)


def count_paused(db: Db) -> dict[str, int]:
    """How many messages are paused, by what they wait for."""
    return dict(db.execute(_COUNT).fetchall())


def read_pauses(db: Db) -> list[PausedMessages]:
    """All pauses with how many messages wait for each."""
    counts = count_paused(db)
    return [PausedMessages(pause, counts.get(pause.waits_for, 0)) for pause in pauses(db)]


def read_known(db: Db, messages: Collection[int], settings: Collection[int]) -> KnownIds:
    """Look ids up: of messages, and of settings among the latest messages."""
    there = db.execute(_THERE, (list(messages),)) if messages else ()
    lately = db.execute(_TAKEN_LATELY, (RECENT, list(settings))) if settings else ()
    return KnownIds(frozenset(id_ for (id_,) in there), frozenset(id_ for (id_,) in lately))


def is_there(db: Db, message_id: int) -> bool:
    """Whether a message isn't unknown, and not pruned either."""
    return db.execute(_STATE, (message_id,)).fetchone() is not None


def hindrance_to_pause(db: Db, message_id: int) -> str | None:
    """Why a message can't be paused: it has ended. None: it can, even if it wasn't taken yet."""
    row = db.execute(_STATE, (message_id,)).fetchone()
    if row is None:
        is_forgotten = db.execute("SELECT 1 FROM tombstone WHERE id = %s", (message_id,)).fetchone()
        return "it has ended long ago" if is_forgotten else None
    return hindrance_in_state(State(row[0]), may_go_on=row[1])
