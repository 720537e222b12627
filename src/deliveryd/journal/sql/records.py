"""What operators' orders read and write of the journal; what they do is in `order_table`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from deliveryd.journal.orders import Effect, Order
from deliveryd.journal.sql import pauses
from deliveryd.journal.sql.anew import begin_anew
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.erasure import erase_malformed, erase_message, erase_receipt
from deliveryd.journal.sql.forgetting import forget_message
from deliveryd.journal.sql.obstacles import obstacle_to_beginning_anew, obstacle_to_forgetting
from deliveryd.journal.sql.operations import Operations
from deliveryd.journal.sql.outbox import AT, HAPPENED, WATERMARK, Outbox
from deliveryd.journal.sql.pauses import Pause, PauseKind
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.journal.sql.rows import ENTRY, entry_of
from deliveryd.journal.sql.stopped import record_stops, stop_key_of
from deliveryd.journal.sql.unread_reports import erase_unread
from deliveryd.model import Entry, StopChange, Transition
from deliveryd.states import State

_SET_ASIDE_EVENTS = (  # refused, or reported once more since the queue handed the message out again
    f"status = 'dequeued' AND dropped_at IS NULL AND (refused IS NOT NULL OR seq > {WATERMARK})"
)
RECORD = (
    'INSERT INTO decision (at, verb, kind, key, message_id, "user", caller, reason)'
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
"""Records that an order was carried out for a key."""


class EventRefused(NamedTuple):
    """An event that the service refused, and whether its message is set aside."""

    message_id: int
    status: str
    is_message_aside: bool


class LatestEvent(NamedTuple):
    """The event that happened last of those that weren't refused, and whether it still waits."""

    status: str
    body: str
    waits: bool


class Records:
    """What orders read and write of a log, in the transaction that is open."""

    def __init__(self, db: Db, operations: Operations, matching: Matching, outbox: Outbox) -> None:
        self._db = db
        self._operations = operations
        self._matching = matching
        self._outbox = outbox
        self.stop_key = stop_key_of(db)

    def entry_in(self, id_: int, state: State) -> Entry | None:
        """A message, if it is in a state."""
        query = f"SELECT {ENTRY} FROM message WHERE id = ? AND state = ?"  # noqa: S608  # a constant
        row = self._db.execute(query, (id_, state)).fetchone()
        return None if row is None else entry_of(row)

    def change(self, transition: Transition) -> None:
        """Take a step of a message."""
        self._operations.change(self._db, [transition])

    def obstacle_to_beginning_anew(self, id_: int, *, accepted: bool) -> str | None:
        """Why a failed message can't begin anew now; `accepted`: duplicates are."""
        return obstacle_to_beginning_anew(self._db, id_, accepted=accepted)

    def begin_anew(self, id_: int, at: int) -> Transition:
        """Write what the step of a failed message leaves behind, and return the step."""
        return begin_anew(self._db, id_, at)

    def set_aside_events(self, id_: int) -> Sequence[int]:
        """The numbers of a message's `dequeued` that was refused, and of its repeat that waits."""
        return self._numbers(_SET_ASIDE_EVENTS, id_)

    def with_waiting(self, seq: int, id_: int) -> Sequence[int]:
        """The numbers of a refused event and of those of its message that wait, as they happened."""
        query = (
            f"SELECT seq FROM event WHERE message_id = ? AND (seq = ? OR seq > {WATERMARK})"  # noqa: S608
            f" ORDER BY {AT}, {HAPPENED}"
        )
        return [number for (number,) in self._db.execute(query, (id_, seq))]

    def _numbers(self, which: str, id_: int) -> list[int]:
        """The numbers of a message's events of which some SQL is true, in their order."""
        query = f"SELECT seq FROM event WHERE message_id = ? AND {which} ORDER BY seq"  # noqa: S608
        return [seq for (seq,) in self._db.execute(query, (id_,))]

    def refused_event(self, seq: int) -> EventRefused | None:
        """An event that was refused, and not dropped."""
        row = self._db.execute(
            "SELECT message_id, status,"  # noqa: S608  # a constant
            f" EXISTS (SELECT 1 FROM message WHERE id = message_id AND state = {State.SET_ASIDE:d})"
            " FROM event WHERE seq = ? AND refused IS NOT NULL AND dropped_at IS NULL",
            (seq,),
        ).fetchone()
        return None if row is None else EventRefused(row[0], row[1], bool(row[2]))

    def latest_event(self, id_: int) -> LatestEvent:
        """A message's latest event, in the order in which things happened."""
        status, body, waits = self._db.execute(
            f"SELECT status, body, max(seq) > {WATERMARK} FROM event"  # noqa: S608  # constants
            " WHERE message_id = ? GROUP BY status, body HAVING count(refused) < count(*)"
            f" ORDER BY min({HAPPENED}) DESC LIMIT 1",
            (id_,),
        ).fetchone()
        return LatestEvent(status, body, bool(waits))

    def put_last(self, seqs: Sequence[int]) -> None:
        """Have events wait behind all others."""
        self._outbox.put_last(self._db, seqs)

    def put_again(self, id_: int, status: str, body: str) -> None:
        """Put an event in once more."""
        self._outbox.put_again(self._db, [(id_, status, body)])

    def is_unmatched(self, seq: int) -> bool:
        """Whether a receipt fits no attempt yet, and wasn't dropped."""
        row = self._db.execute(
            "SELECT 1 FROM receipt WHERE seq = ? AND message_id IS NULL AND dropped_at IS NULL", (seq,)
        ).fetchone()
        return row is not None

    def match_again(self, seq: int, at: int) -> tuple[int, Effect] | None:
        """Try a receipt once more; return the message and the effect."""
        effect = self._matching.match_again(self._db, seq, at)
        if effect is None:
            return None
        (id_,) = self._db.execute("SELECT message_id FROM receipt WHERE seq = ?", (seq,)).fetchone()
        return id_, effect

    def drop_set_aside(self, id_: int, at: int) -> bool:
        """Mark the `dequeued` of a message as dropped; return whether there was one."""
        query = f"UPDATE event SET dropped_at = ? WHERE message_id = ? AND {_SET_ASIDE_EVENTS}"  # noqa: S608
        return self._db.execute(query, (at, id_)).rowcount > 0

    def drop_event(self, seq: int, at: int) -> bool:
        """Mark an event as dropped."""
        return self._db.execute("UPDATE event SET dropped_at = ? WHERE seq = ?", (at, seq)).rowcount > 0

    def drop_receipt(self, seq: int, at: int) -> bool:
        """Mark a receipt as dropped."""
        return self._db.execute("UPDATE receipt SET dropped_at = ? WHERE seq = ?", (at, seq)).rowcount > 0

    def malformed_named(self, prefix: str) -> Sequence[tuple[str, int | None]]:
        """Malformed elements whose digests begin so, each with its message's id."""
        return self._db.execute(
            "SELECT digest, message_id FROM malformed"
            " WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
            (prefix,),
        ).fetchall()

    def drop_malformed(self, digest: str, at: int) -> bool:
        """Mark a malformed element as dropped."""
        query = "UPDATE malformed SET dropped_at = ? WHERE digest = ?"
        return self._db.execute(query, (at, digest)).rowcount > 0

    def reports_named(self, prefix: str) -> Sequence[str]:
        """The digests of reports that can't be read, which begin so."""
        rows = self._db.execute(
            "SELECT digest FROM unread WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
            (prefix,),
        )
        return [digest for (digest,) in rows]

    def drop_report(self, digest: str, at: int) -> bool:
        """Mark a report as dropped."""
        return (
            self._db.execute("UPDATE unread SET dropped_at = ? WHERE digest = ?", (at, digest)).rowcount > 0
        )

    def record_stop(self, change: StopChange) -> bool:
        """Record a change of the stopped list; return whether it changed that."""
        (changed,) = record_stops(self._db, [change])
        return changed

    def obstacle_to_forgetting(self, id_: int, *, accepted: bool) -> str | None:
        """Why a message can't be forgotten now; `accepted`: duplicates are."""
        return obstacle_to_forgetting(self._db, id_, accepted=accepted)

    def forget(self, id_: int) -> None:
        """Forget a message."""
        forget_message(self._db, id_)

    def erase_message(self, id_: int) -> str | None:
        """Erase a message; return why not if it can't be erased."""
        return erase_message(self._db, id_)

    def erase_receipt(self, seq: int) -> str | None:
        """Erase an unmatched receipt; return why not."""
        return erase_receipt(self._db, seq)

    def erase_report(self, prefix: str) -> str | None:
        """Erase a report that can't be read; return why not."""
        return erase_unread(self._db, prefix)

    def erase_malformed(self, digest: str) -> str | None:
        """Erase a malformed element; return why not."""
        return erase_malformed(self._db, digest)

    def pauses(self) -> Sequence[Pause]:
        """All pauses, the oldest first."""
        return pauses.pauses(self._db)

    def begin_pause(self, pause: Pause) -> None:
        """Pause something; what is paused already stays so since then, with the new end and reason."""
        pauses.begin_pause(self._db, pause)

    def end_pause(self, kind: PauseKind, key: str) -> bool:
        """Resume something; return whether it was paused."""
        return pauses.end_pause(self._db, kind, key)

    def hindrance_to_pause(self, id_: int) -> str | None:
        """Why a message can't be paused."""
        return pauses.hindrance_to_pause(self._db, id_)

    def is_there(self, id_: int) -> bool:
        """Whether there is such a message."""
        return self._db.execute("SELECT 1 FROM main.message WHERE id = ?", (id_,)).fetchone() is not None

    def note(self, order: Order, key: str, message_id: int | None, at: int) -> None:
        """Record that an order was carried out for a key."""
        by = order.user, order.caller, order.reason
        self._db.execute(RECORD, (at, order.verb, order.kind, key, message_id, *by))
