"""What operators' orders read and write of the embedded journal; what they do is in `order_table`."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from deliveryd.journal import pauses
from deliveryd.journal.anew import begin_anew, obstacle_to_beginning_anew
from deliveryd.journal.erasure import erase_malformed, erase_message, erase_receipt
from deliveryd.journal.forgetting import forget_message, obstacle_to_forgetting
from deliveryd.journal.operations import Operations
from deliveryd.journal.order_table import EventRefused, LatestEvent, carry_out_order
from deliveryd.journal.orders import Decided, Effect, Order
from deliveryd.journal.outbox import AT, HAPPENED, WATERMARK, Outbox
from deliveryd.journal.pause_orders import PAUSE_ORDERS, carry_out_pauses, note_end
from deliveryd.journal.pauses import Pause, PauseKind
from deliveryd.journal.receipt_match import Matching
from deliveryd.journal.rows import ENTRY, entry_of
from deliveryd.journal.stopped import record_stops, stop_key_of
from deliveryd.journal.unread_reports import erase_unread
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


class Decisions:
    """Carries out orders in the embedded journal."""

    def __init__(self, operations: Operations, matching: Matching, outbox: Outbox) -> None:
        self._operations = operations
        self._matching = matching
        self._outbox = outbox

    def carry_out(self, db: sqlite3.Connection, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an order for each of its keys, where that can be done."""
        records = self._records(db)
        if order.verb in PAUSE_ORDERS:
            return carry_out_pauses(records, order, at, providers)
        return carry_out_order(records, order, at, providers)

    def end_pauses(self, db: sqlite3.Connection, now: int) -> Sequence[Pause]:
        """Resume what was paused until now, and record that; return all other pauses."""
        records = self._records(db)
        for each in pauses.ended_pauses(db, now):
            pauses.end_pause(db, each.kind, each.key)
            note_end(records, each.kind, each.key, now)
        return pauses.pauses(db)

    def _records(self, db: sqlite3.Connection) -> _Records:
        return _Records(db, self._operations, self._matching, self._outbox)


class _Records:
    """The records of one transaction: `order_table.OrderRecords` and `pause_orders.PauseRecords`."""

    def __init__(
        self, db: sqlite3.Connection, operations: Operations, matching: Matching, outbox: Outbox
    ) -> None:
        self._db = db
        self._operations = operations
        self._matching = matching
        self._outbox = outbox
        self.stop_key = stop_key_of(db)

    def entry_in(self, id_: int, state: State) -> Entry | None:
        query = f"SELECT {ENTRY} FROM message WHERE id = ? AND state = ?"  # noqa: S608  # a constant
        row = self._db.execute(query, (id_, state)).fetchone()
        return None if row is None else entry_of(row)

    def change(self, transition: Transition) -> None:
        self._operations.change(self._db, [transition])

    def obstacle_to_beginning_anew(self, id_: int, *, accepted: bool) -> str | None:
        return obstacle_to_beginning_anew(self._db, id_, accepted=accepted)

    def begin_anew(self, id_: int, at: int) -> Transition:
        return begin_anew(self._db, id_, at)

    def set_aside_events(self, id_: int) -> Sequence[int]:
        return self._numbers(_SET_ASIDE_EVENTS, id_)

    def with_waiting(self, seq: int, id_: int) -> Sequence[int]:
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
        row = self._db.execute(
            "SELECT message_id, status,"  # noqa: S608  # a constant
            f" EXISTS (SELECT 1 FROM message WHERE id = message_id AND state = {State.SET_ASIDE:d})"
            " FROM event WHERE seq = ? AND refused IS NOT NULL AND dropped_at IS NULL",
            (seq,),
        ).fetchone()
        return None if row is None else EventRefused(row[0], row[1], bool(row[2]))

    def latest_event(self, id_: int) -> LatestEvent:
        status, body, waits = self._db.execute(
            f"SELECT status, body, max(seq) > {WATERMARK} FROM event"  # noqa: S608  # constants
            " WHERE message_id = ? GROUP BY status, body HAVING count(refused) < count(*)"
            f" ORDER BY min({HAPPENED}) DESC LIMIT 1",
            (id_,),
        ).fetchone()
        return LatestEvent(status, body, bool(waits))

    def put_last(self, seqs: Sequence[int]) -> None:
        self._outbox.put_last(self._db, seqs)

    def put_again(self, id_: int, status: str, body: str) -> None:
        self._outbox.put_again(self._db, [(id_, status, body)])

    def is_unmatched(self, seq: int) -> bool:
        row = self._db.execute(
            "SELECT 1 FROM receipt WHERE seq = ? AND message_id IS NULL AND dropped_at IS NULL", (seq,)
        ).fetchone()
        return row is not None

    def match_again(self, seq: int, at: int) -> tuple[int, Effect] | None:
        effect = self._matching.match_again(self._db, seq, at)
        if effect is None:
            return None
        (id_,) = self._db.execute("SELECT message_id FROM receipt WHERE seq = ?", (seq,)).fetchone()
        return id_, effect

    def drop_set_aside(self, id_: int, at: int) -> bool:
        query = f"UPDATE event SET dropped_at = ? WHERE message_id = ? AND {_SET_ASIDE_EVENTS}"  # noqa: S608
        return self._db.execute(query, (at, id_)).rowcount > 0

    def drop_event(self, seq: int, at: int) -> bool:
        return self._db.execute("UPDATE event SET dropped_at = ? WHERE seq = ?", (at, seq)).rowcount > 0

    def drop_receipt(self, seq: int, at: int) -> bool:
        return self._db.execute("UPDATE receipt SET dropped_at = ? WHERE seq = ?", (at, seq)).rowcount > 0

    def malformed_named(self, prefix: str) -> Sequence[tuple[str, int | None]]:
        return self._db.execute(
            "SELECT digest, message_id FROM malformed"
            " WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
            (prefix,),
        ).fetchall()

    def drop_malformed(self, digest: str, at: int) -> bool:
        query = "UPDATE malformed SET dropped_at = ? WHERE digest = ?"
        return self._db.execute(query, (at, digest)).rowcount > 0

    def reports_named(self, prefix: str) -> Sequence[str]:
        rows = self._db.execute(
            "SELECT digest FROM unread WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
            (prefix,),
        )
        return [digest for (digest,) in rows]

    def drop_report(self, digest: str, at: int) -> bool:
        return (
            self._db.execute("UPDATE unread SET dropped_at = ? WHERE digest = ?", (at, digest)).rowcount > 0
        )

    def record_stop(self, change: StopChange) -> bool:
        (changed,) = record_stops(self._db, [change])
        return changed

    def obstacle_to_forgetting(self, id_: int, *, accepted: bool) -> str | None:
        return obstacle_to_forgetting(self._db, id_, accepted=accepted)

    def forget(self, id_: int) -> None:
        forget_message(self._db, id_)

    def erase_message(self, id_: int) -> str | None:
        return erase_message(self._db, id_)

    def erase_receipt(self, seq: int) -> str | None:
        return erase_receipt(self._db, seq)

    def erase_report(self, prefix: str) -> str | None:
        return erase_unread(self._db, prefix)

    def erase_malformed(self, digest: str) -> str | None:
        return erase_malformed(self._db, digest)

    def pauses(self) -> Sequence[Pause]:
        return pauses.pauses(self._db)

    def begin_pause(self, pause: Pause) -> None:
        pauses.begin_pause(self._db, pause)

    def end_pause(self, kind: PauseKind, key: str) -> bool:
        return pauses.end_pause(self._db, kind, key)

    def hindrance_to_pause(self, id_: int) -> str | None:
        return pauses.hindrance_to_pause(self._db, id_)

    def is_there(self, id_: int) -> bool:
        return self._db.execute("SELECT 1 FROM message WHERE id = ?", (id_,)).fetchone() is not None

    def note(self, order: Order, key: str, message_id: int | None, at: int) -> None:
        by = order.user, order.caller, order.reason
        self._db.execute(RECORD, (at, order.verb, order.kind, key, message_id, *by))
