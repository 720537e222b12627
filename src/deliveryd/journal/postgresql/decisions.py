"""What operators' orders read and write of this journal; what they do is in `journal.order_table`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from deliveryd import transitions
from deliveryd.journal.order_table import EventRefused, LatestEvent, carry_out_order
from deliveryd.journal.orders import Decided, Effect, Order
from deliveryd.journal.pause_orders import PAUSE_ORDERS, carry_out_pauses, note_end
from deliveryd.journal.pauses import Pause, PauseKind
from deliveryd.journal.postgresql import pauses, standing
from deliveryd.journal.postgresql.commits import ChangedMeanwhile
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.outbox import AT, HAPPENED, PRESENT, WAITS, Outbox
from deliveryd.journal.postgresql.receipts import Matching
from deliveryd.journal.postgresql.retention import exclude_forgetting, forget_beside
from deliveryd.journal.postgresql.stopped import record_stops
from deliveryd.journal.postgresql.tombstones import add_tombstones, keep_beginnings, strip_details
from deliveryd.journal.postgresql.values import ENTRY, LOCATED, VISIBLE, plain
from deliveryd.journal.rows import entry_of
from deliveryd.model import Entry, StopChange, Transition
from deliveryd.states import State

_ENTRY_IN = f"""
SELECT {ENTRY} FROM unnest(ARRAY[%s::int8]) AS wanted (id) {LOCATED.format(id="wanted.id")}
WHERE m.state = %s AND {VISIBLE} FOR NO KEY UPDATE OF m
"""
_LOCK = f"""
SELECT 1 FROM unnest(ARRAY[%s::int8]) AS wanted (id) {LOCATED.format(id="wanted.id")} FOR NO KEY UPDATE OF m
"""
_LOCK_SEEN = "SELECT 1 FROM seen WHERE id = %s FOR NO KEY UPDATE"
_GIVE_TO = """
WITH noted AS (INSERT INTO given (id, log) VALUES (%(id)s, %(log)s)
    ON CONFLICT (id) DO UPDATE SET log = excluded.log)
UPDATE message m SET owner = %(log)s FROM seen
WHERE seen.id = %(id)s AND m.id = seen.id AND m.day = seen.day
"""
_SET_ASIDE_EVENTS = (  # refused, or reported once more since the queue handed the message out again
    f"e.status = 'dequeued' AND e.dropped_at IS NULL AND (e.refused_at IS NOT NULL OR {WAITS})"
)
_REFUSED_EVENT = f"""
SELECT e.message_id, e.status, EXISTS (
    SELECT 1 FROM seen JOIN message m ON m.day = seen.day AND m.id = seen.id
    WHERE seen.id = e.message_id AND m.state = {State.SET_ASIDE:d})
FROM event e WHERE e.seq = %s AND e.refused_at IS NOT NULL AND e.dropped_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.message_id = e.message_id AND i.moved = e.seq)
"""
_WITH_WAITING = f"""
SELECT e.seq FROM event e WHERE e.message_id = %(id)s AND (e.seq = %(seq)s OR {WAITS}
    OR EXISTS (SELECT 1 FROM inbox i WHERE i.message_id = e.message_id AND i.moved = e.seq))
ORDER BY {AT}, {HAPPENED}
"""
_MESSAGE_OF = "SELECT message_id FROM event WHERE seq = %s"
_LATEST_EVENT = f"""
SELECT status, body, bool_or(waits) FROM (
    SELECT e.status, e.body, {WAITS} OR is_moved AS waits, e.refused_at IS NULL OR is_moved AS stands,
        {AT} AS at, {HAPPENED} AS happened
    FROM event e, LATERAL (SELECT EXISTS (SELECT 1 FROM inbox i
        WHERE i.message_id = e.message_id AND i.moved = e.seq) AS is_moved) AS i
    WHERE e.message_id = %(id)s AND {PRESENT}
    UNION ALL SELECT e.status, e.body, true, true, {AT}, {2**63 - 1} FROM inbox e
    WHERE e.message_id = %(id)s AND e.moved IS NULL) AS found
GROUP BY status, body HAVING bool_or(stands) ORDER BY min(at) DESC, min(happened) DESC LIMIT 1
"""
_ANEW = f"""
SELECT greatest(m.beginning, coalesce((SELECT max(u.beginning) FROM unaccepted u
    WHERE u.message_id = m.id AND u.day = m.day), 1)), {ENTRY}
FROM unnest(ARRAY[%s::int8]) AS wanted (id) {LOCATED.format(id="wanted.id")}
"""
_LEAVE_ACCEPTED = f"""
INSERT INTO unaccepted AS u (message_id, day, key, number, provider, beginning, started_at, ended_at, verdict,
    provider_id, reason)
SELECT m.id, m.day, m.key, m.number, m.provider, m.beginning, m.started_at, m.accepted_at, 'accepted',
    m.provider_id, m.reason
FROM unnest(ARRAY[%s::int8]) AS wanted (id) {LOCATED.format(id="wanted.id")} WHERE m.accepted_at IS NOT NULL
ON CONFLICT (message_id, key, number, day) DO UPDATE SET verdict = 'accepted', ended_at = excluded.ended_at,
    provider_id = excluded.provider_id,
    reason = coalesce(u.reason || '; ' || excluded.reason, u.reason, excluded.reason)
"""
_LEAVE = """
UPDATE message m SET sent_by = NULL, started_at = NULL, accepted_at = NULL, provider_id = NULL, reason = NULL
FROM seen WHERE seen.id = %s AND m.day = seen.day AND m.id = seen.id
"""
_RECORD = """
INSERT INTO decision (at, verb, kind, key, message_id, "user", caller, reason)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
"""
_DELETE = (
    "DELETE FROM event WHERE message_id = %(id)s",
    "DELETE FROM unaccepted WHERE message_id = %(id)s",
    "DELETE FROM receipt WHERE message_id = %(id)s",
    "DELETE FROM malformed WHERE message_id = %(id)s",
    "DELETE FROM message m USING seen WHERE seen.id = %(id)s AND m.id = seen.id AND m.day = seen.day",
)
_BEGUN = """
INSERT INTO beginning (id, count) VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET doubt = false
"""
_PREFIXED = "digest >= %(prefix)s AND digest < %(prefix)s || 'g'"


class Decisions:
    """Carries out orders."""

    def __init__(self, outbox: Outbox, matching: Matching, worker: int, stop_key: bytes) -> None:
        self._outbox = outbox
        self._matching = matching
        self._worker = worker
        self._stop_key = stop_key

    def carry_out(self, db: Db, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an order for each of its keys, where that can be done."""
        exclude_forgetting(db)
        records = self._records(db)
        if order.verb in PAUSE_ORDERS:
            return carry_out_pauses(records, order, at, providers)
        decided = carry_out_order(records, order, at, providers)
        return decided._replace(effects=tuple(map(records.here, decided.effects)))

    def end_pauses(self, db: Db, now: int) -> Sequence[Pause]:
        """Resume what was paused until now, and record that; return all other pauses."""
        records = self._records(db)
        for each in pauses.take_out_ended(db, now):
            note_end(records, each.kind, each.key, now)
        return pauses.pauses(db)

    def _records(self, db: Db) -> _Records:
        return _Records(db, self._outbox, self._matching, self._worker, self._stop_key)


class _Records:
    """The records of one transaction: `order_table.OrderRecords` and `pause_orders.PauseRecords`."""

    def __init__(self, db: Db, outbox: Outbox, matching: Matching, worker: int, stop_key: bytes) -> None:
        self._db = db
        self._outbox = outbox
        self._matching = matching
        self._worker = worker
        self.stop_key = stop_key
        self._elsewhere: dict[int, int] = {}

    def here(self, effect: Effect) -> Effect:
        """The effect, as far as this worker has to do with it: another one may report the `dequeued`."""
        is_elsewhere = effect.taken is not None and effect.taken.id in self._elsewhere
        return effect._replace(taken=None, events=0) if is_elsewhere else effect

    def entry_in(self, id_: int, state: State) -> Entry | None:
        row = self._db.execute(_ENTRY_IN, (id_, state)).fetchone()
        return None if row is None else entry_of(row)

    def change(self, transition: Transition) -> None:
        id_ = transition.entry.id
        if id_ in self._matching.change(self._db, [transition]).lost:
            raise ChangedMeanwhile("the message of this order changed meanwhile")
        if transition.after is State.TAKEN and (log := self._elsewhere.get(id_)) is not None:
            self._db.execute(_GIVE_TO, {"id": id_, "log": log})  # who reports its `dequeued` has it then

    def _lock(self, id_: int) -> None:
        """Let nobody else change the message, or report of a pruned one, before this order is carried out."""
        if self._db.execute(_LOCK, (id_,)).fetchone() is None:
            self._db.execute(_LOCK_SEEN, (id_,))

    def obstacle_to_beginning_anew(self, id_: int, *, accepted: bool) -> str | None:
        self._lock(id_)
        return standing.obstacle_to_beginning_anew(self._db, id_, accepted=accepted)

    def begin_anew(self, id_: int, at: int) -> Transition:
        count, *row = self._db.execute(_ANEW, (id_,)).fetchone() or (1,)
        self._db.execute(_LEAVE_ACCEPTED, (id_,))
        self._db.execute(_LEAVE, (id_,))
        return transitions.ordered_anew(entry_of(row)._replace(beginning=count), at)

    def set_aside_events(self, id_: int) -> Sequence[int]:
        return self._numbers(_SET_ASIDE_EVENTS, id_)

    def with_waiting(self, seq: int, id_: int) -> Sequence[int]:
        return [number for (number,) in self._db.execute(_WITH_WAITING, {"id": id_, "seq": seq})]

    def _numbers(self, which: str, id_: int) -> list[int]:
        """The numbers of a message's events of which some SQL is true, in their order."""
        query = f"SELECT e.seq FROM event e WHERE e.message_id = %s AND {which} ORDER BY e.seq"
        return [seq for (seq,) in self._db.execute(query, (id_,))]

    def refused_event(self, seq: int) -> EventRefused | None:
        self._outbox.lock(self._db, [id_ for (id_,) in self._db.execute(_MESSAGE_OF, (seq,))])
        row = self._db.execute(_REFUSED_EVENT, (seq,)).fetchone()
        return None if row is None else EventRefused(*row)

    def latest_event(self, id_: int) -> LatestEvent:
        return LatestEvent(*(self._db.execute(_LATEST_EVENT, {"id": id_}).fetchone() or ("", "", True)))

    def put_last(self, seqs: Sequence[int]) -> None:
        self._elsewhere |= self._outbox.put_last(self._db, seqs)

    def put_again(self, id_: int, status: str, body: str) -> None:
        self._outbox.put_again(self._db, [(id_, status, body)])

    def is_unmatched(self, seq: int) -> bool:
        query = "SELECT 1 FROM unmatched WHERE seq = %s AND dropped_at IS NULL"
        return self._db.execute(query, (seq,)).fetchone() is not None

    def match_again(self, seq: int, at: int) -> tuple[int, Effect] | None:
        return self._matching.match_again(self._db, seq, at)

    def drop_set_aside(self, id_: int, at: int) -> bool:
        return self._changed(
            f"UPDATE event e SET dropped_at = %s WHERE e.message_id = %s AND {_SET_ASIDE_EVENTS}", at, id_
        )

    def drop_event(self, seq: int, at: int) -> bool:
        return self._changed("UPDATE event SET dropped_at = %s WHERE seq = %s", at, seq)

    def drop_receipt(self, seq: int, at: int) -> bool:
        return self._changed("UPDATE unmatched SET dropped_at = %s WHERE seq = %s", at, seq)

    def malformed_named(self, prefix: str) -> Sequence[tuple[str, int | None]]:
        query = f"SELECT digest, message_id FROM malformed WHERE {_PREFIXED} AND dropped_at IS NULL"
        return [(digest, id_) for digest, id_ in self._db.execute(query, {"prefix": plain(prefix)})]

    def drop_malformed(self, digest: str, at: int) -> bool:
        return self._changed("UPDATE malformed SET dropped_at = %s WHERE digest = %s", at, digest)

    def reports_named(self, prefix: str) -> Sequence[str]:
        query = f"SELECT digest FROM unread WHERE {_PREFIXED} AND dropped_at IS NULL"
        return [digest for (digest,) in self._db.execute(query, {"prefix": plain(prefix)})]

    def drop_report(self, digest: str, at: int) -> bool:
        return self._changed("UPDATE unread SET dropped_at = %s WHERE digest = %s", at, digest)

    def _changed(self, statement: str, *values: Any) -> bool:
        return self._db.execute(statement, values).rowcount > 0

    def record_stop(self, change: StopChange) -> bool:
        (changed,) = record_stops(self._db, [change])
        return changed

    def obstacle_to_forgetting(self, id_: int, *, accepted: bool) -> str | None:
        self._lock(id_)
        return standing.obstacle_to_forgetting(self._db, id_, accepted=accepted)

    def forget(self, id_: int) -> None:
        """The decisions about it stay; those about the message itself name it by their key as well."""
        keep_beginnings(self._db, [id_])
        self._db.execute("UPDATE decision SET message_id = NULL WHERE message_id = %s", (id_,))
        self._delete(id_)
        buried = self._db.execute("DELETE FROM tombstone WHERE id = %s", (id_,)).rowcount
        self._db.execute("DELETE FROM seen WHERE id = %s", (id_,))
        self._db.execute(_BEGUN, (id_,))
        self._db.execute(
            "UPDATE worker SET pruned = pruned - %s, forgotten = forgotten + 1 WHERE id = %s",
            (buried, self._worker),
        )

    def _delete(self, id_: int) -> None:
        forget_beside(self._db, [id_])
        for statement in _DELETE:
            self._db.execute(statement, {"id": id_})

    def erase_message(self, id_: int) -> str | None:
        self._lock(id_)
        if (reason := standing.obstacle_to_erasing(self._db, id_)) is not None:
            return reason
        add_tombstones(self._db, [id_])
        strip_details(self._db, id_)
        self._delete(id_)
        self._db.execute("UPDATE worker SET pruned = pruned + 1 WHERE id = %s", (self._worker,))
        return None

    def erase_receipt(self, seq: int) -> str | None:
        is_gone = self._changed("DELETE FROM unmatched WHERE seq = %s", seq)
        return None if is_gone else "it isn't there any more, or fits an attempt by now"

    def erase_report(self, prefix: str) -> str | None:
        erased = self._db.execute(f"DELETE FROM unread WHERE {_PREFIXED}", {"prefix": plain(prefix)}).rowcount
        return None if erased else "it isn't there any more"

    def erase_malformed(self, digest: str) -> str | None:
        is_gone = self._changed("DELETE FROM malformed WHERE digest = %s", plain(digest))
        return None if is_gone else "it isn't there any more"

    def pauses(self) -> Sequence[Pause]:
        return pauses.pauses(self._db)

    def begin_pause(self, pause: Pause) -> None:
        pauses.begin_pause(self._db, pause)

    def end_pause(self, kind: PauseKind, key: str) -> bool:
        return pauses.end_pause(self._db, kind, key)

    def hindrance_to_pause(self, id_: int) -> str | None:
        return pauses.hindrance_to_pause(self._db, id_)

    def is_there(self, id_: int) -> bool:
        return pauses.is_there(self._db, id_)

    def note(self, order: Order, key: str, message_id: int | None, at: int) -> None:
        by = plain(order.user), plain(order.caller), plain(order.reason)
        self._db.execute(_RECORD, (at, order.verb, order.kind, plain(key), message_id, *by))
