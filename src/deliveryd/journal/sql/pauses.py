"""What operators paused: the pauses, and the messages that wait for their ends.

A message that is paused waits for the end of one pause (`runtime.waits.end_of_pause`), and is due when it
expires. When the pause ends, it is due at once; another pause may apply to it then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.rows import IDS, to_json
from deliveryd.model import format_instant
from deliveryd.runtime import waits
from deliveryd.states import State


class PauseKind(StrEnum):
    """What can be paused."""

    INTAKE = "intake"  # the take of messages; its key: INTAKE
    CHANNEL = "channel"  # a channel, by its name: messages that would choose it
    PROVIDER = "provider"  # a provider, by its identity: other providers of the channel take its messages
    SETTINGS = "settings"  # messages with a settings id
    MESSAGE = "message"  # a message, by its id


INTAKE = "intake"
"""The key of a pause of the intake."""


class Pause(NamedTuple):
    """What is paused since when, until when (None: until it is resumed), by whom, and why."""

    kind: PauseKind
    key: str
    since: int
    until: int | None = None
    user: str | None = None
    caller: str | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        """What is paused, as text for operators."""
        return self.key if self.kind is PauseKind.INTAKE else f"{self.kind} {self.key}"

    @property
    def who(self) -> str | None:
        """Who paused it: the user, and on whose behalf, as far as that is known."""
        if self.user is None or self.caller is None:
            return self.user or self.caller
        return f"{self.caller} (as {self.user})"

    def __str__(self) -> str:
        """What is paused, since when, until when, by whom, and why."""
        until = f", until {_second(self.until)}" if self.until is not None else ""
        by = f" by {self.who}" if self.who is not None else ""
        reason = f" ({self.reason})" if self.reason is not None else ""
        return f"{self.name} since {_second(self.since)}{until}{by}{reason}"

    @property
    def waits_for(self) -> str:
        """What its messages wait for."""
        return waits.end_of_pause(self.kind, self.key)


class PausedMessages(NamedTuple):
    """A pause, and how many messages wait for its end."""

    pause: Pause
    messages: int


IS_PAUSED = (
    f"waits_for >= '{waits.PAUSED_FROM}' AND waits_for < '{waits.PAUSED_BELOW}' AND due_at IS NOT NULL"
)
"""Of a message: whether it is paused."""

RECENT = 100_000
"""How many of the messages with the highest ids are examined for a settings id that was never taken."""

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
WHERE {IS_PAUSED} AND doubt = 1 AND provider NOT IN (SELECT value FROM json_each(?))
"""  # noqa: S608  # constants
_STATE = "SELECT state, coalesce(confirm_by, failed_next) FROM main.message WHERE id = ?"
_TAKEN_LATELY = f"""
SELECT 1 FROM (SELECT settings_id FROM message ORDER BY id DESC LIMIT {RECENT}) AS latest
WHERE settings_id = ? LIMIT 1
"""  # noqa: S608  # a constant


def _second(instant: int) -> str:
    return f"{format_instant(instant)[:19]}Z"


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


def paused_in_doubt_elsewhere(db: Db, providers: Collection[str]) -> list[int]:
    """The paused messages that are in doubt at a provider that isn't among these."""
    return [id_ for (id_,) in db.execute(_UNBINDABLE, (to_json(list(providers)),))]


def hindrance_to_pause(db: Db, message_id: int) -> str | None:
    """Why a message can't be paused: it has ended. None: it can, even if it wasn't taken yet."""
    row = db.execute(_STATE, (message_id,)).fetchone()
    if row is None:
        is_forgotten = db.execute("SELECT 1 FROM main.tombstone WHERE id = ?", (message_id,)).fetchone()
        return "it has ended long ago" if is_forgotten else None
    return hindrance_in_state(State(row[0]), may_go_on=row[1] is not None)


def hindrance_in_state(state: State, *, may_go_on: bool) -> str | None:
    """Why a message in a state can't be paused; `may_go_on`: a sent one that a receipt may still send on."""
    if state in (State.DELIVERED, State.FAILED) or (state is State.SENT and not may_go_on):
        return f"it has ended: it is {state.name.lower()}"
    return None


def as_data(each: PausedMessages) -> Mapping[str, object]:
    """A pause and the number of its messages as JSON."""
    return {**pause_data(each.pause), "messages": each.messages}


def pause_data(pause: Pause) -> Mapping[str, object]:
    """A pause as JSON; instants as in events."""
    until = pause.until
    return {
        "kind": pause.kind,
        "key": pause.key,
        "since": format_instant(pause.since),
        "until": None if until is None else format_instant(until),
        "user": pause.user,
        "caller": pause.caller,
        "reason": pause.reason,
    }


# beside a worker, or without one


def paused_messages(db: Db) -> Sequence[PausedMessages]:
    """All pauses with their messages, the oldest first."""
    counts = count_paused(db)
    return [PausedMessages(pause, counts.get(pause.waits_for, 0)) for pause in pauses(db)]


class KnownIds(NamedTuple):
    """Which of the given ids the journal has: of messages, and of settings among the latest messages."""

    messages: frozenset[int]
    settings: frozenset[int]


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
