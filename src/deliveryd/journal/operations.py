"""What the journal does inside one transaction: plain functions on a connection, each a step of the line."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from deliveryd.errors import IllegalTransition
from deliveryd.journal.base import (
    Change,
    Counts,
    Doubtful,
    Due,
    OutboxRow,
    Receipt,
    Recovery,
)
from deliveryd.journal.schema import EventWriter
from deliveryd.model import Entry, Malformed, QueuedMessage, StatusEvent, attempt_id
from deliveryd.states import ENDED, State, step

ENTRY = "id, settings_id, customer_id, variables, lane, tries, attempts, spent, doubt"

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def entry_of(row: tuple[int, int, int, str, str, int, int, str, str | None]) -> Entry:
    """Build an entry from the columns of `ENTRY`."""
    id_, settings_id, customer_id, variables, lane, tries, attempts, spent, doubt = row
    channels = tuple((name, reason) for name, reason in json.loads(spent)) if spent != "[]" else ()
    return Entry(
        id_, settings_id, customer_id, json.loads(variables), lane or None, tries, attempts, channels, doubt
    )


class Operations:
    """The steps. `seq` is the number of the last event written; it lives as long as the journal is open."""

    def __init__(self, namespace: str, events: EventWriter, last_seq: int) -> None:
        self._namespace = namespace
        self._events = events
        self._seq = last_seq

    # intake

    def take(
        self,
        db: sqlite3.Connection,
        messages: Sequence[QueuedMessage],
        malformed: Sequence[Malformed],
        at: int,
    ) -> set[int]:
        """Record a batch of the queue; return the ids that are new."""
        ids = [message.id for message in messages] + [bad.id for bad in malformed if bad.id is not None]
        known = _known(db, ids)
        new: dict[int, QueuedMessage] = {}
        for message in messages:
            if message.id not in known:
                new.setdefault(message.id, message)
        db.executemany(
            "INSERT INTO message (id, settings_id, customer_id, variables, state, taken_at)"
            " VALUES (?, ?, ?, ?, 1, ?)",
            [(m.id, m.settings_id, m.customer_id, _dumps(m.variables), at) for m in new.values()],
        )
        self._put(db, (StatusEvent(id_, "dequeued", at) for id_ in new))
        self._set_aside(db, malformed, known | new.keys(), at)
        self._report_again(db, known)
        return set(new)

    def _set_aside(self, db: sqlite3.Connection, malformed: Sequence[Malformed], known: set[int], at: int) -> None:
        for bad in malformed:
            db.execute(
                "INSERT INTO malformed VALUES (?, ?, ?, ?, ?, ?, 1)"
                " ON CONFLICT (digest) DO UPDATE SET times = times + 1, last_at = excluded.last_at",
                (_digest(bad.raw), bad.raw, bad.reason, bad.id, at, at),
            )
            if bad.id is None or bad.id in known:
                continue
            known.add(bad.id)
            db.execute(
                "INSERT INTO message (id, state, taken_at, ended_at) VALUES (?, ?, ?, ?)",
                (bad.id, State.FAILED, at, at),
            )
            self._put(db, [StatusEvent(bad.id, "error", at, details=f"malformed message: {bad.reason}")])

    def _report_again(self, db: sqlite3.Connection, ids: Iterable[int]) -> None:
        for id_ in ids:
            rows = db.execute(
                "SELECT seq, status, body, settled_at FROM event WHERE message_id = ? ORDER BY seq", (id_,)
            ).fetchall()
            if any(settled_at is None for *_, settled_at in rows):
                continue
            if rows:
                told = {status: body for _, status, body, _ in rows}
                again = dict.fromkeys(status for status in ("dequeued", rows[-1][1]) if status in told)
                bodies = [(status, told[status]) for status in again]
            else:
                past = db.execute("SELECT dequeued, latest FROM past WHERE id = ?", (id_,)).fetchone()
                bodies = [(json.loads(body)["status"], body) for body in past or () if body is not None]
            self._insert_events(db, ((id_, status, body) for status, body in bodies))

    # delivery

    def change(self, db: sqlite3.Connection, changes: Sequence[Change]) -> None:
        """Record steps of messages, with their attempts and events."""
        moved = 0
        for change in changes:
            step(change.before, change.after)
        for ended, statement in (
            (False, "UPDATE message SET state = ?, due_at = ?, lane = ?, tries = ?, attempts = ?, spent = ?,"
             " doubt = ? WHERE id = ? AND state = ?"),
            (True, "UPDATE message SET state = ?, due_at = ?, lane = ?, tries = ?, attempts = ?, spent = ?,"
             " doubt = ?, ended_at = ? WHERE id = ? AND state = ?"),
        ):  # fmt: skip
            rows = [_message_row(c, ended) for c in changes if (c.after in ENDED) is ended]
            if rows:
                moved += db.executemany(statement, rows).rowcount
        if moved != len(changes):
            raise IllegalTransition(f"{len(changes) - moved} of {len(changes)} messages weren't where they should be")
        db.executemany(
            "INSERT INTO attempt (message_id, number, channel, started_at) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (message_id, number) DO UPDATE"
            " SET sends = sends + 1, ended_at = NULL, verdict = NULL, reason = NULL",
            [
                (c.entry.id, c.entry.attempts, c.entry.lane, c.at)
                for c in changes
                if c.after is State.SENDING
            ],
        )
        db.executemany(
            "UPDATE attempt SET ended_at = ?, verdict = ?, provider_id = ?, reason = ?"
            " WHERE message_id = ? AND number = ?",
            [
                (c.at, c.outcome.verdict, c.outcome.provider_id, c.outcome.reason, c.entry.id, c.entry.attempts)
                for c in changes
                if c.outcome is not None
            ],
        )
        self._put(db, (event for change in changes for event in change.events))
        self._match_early(db, changes)

    def due(self, db: sqlite3.Connection, now: int, room: Mapping[str, int]) -> Due:
        """Make waiting messages READY whose time has come."""
        entries: list[Entry] = []
        coming: list[int] = []
        for lane, limit in room.items():
            rows = db.execute(
                "UPDATE message SET state = 2, due_at = NULL WHERE id IN (SELECT id FROM message"
                " WHERE state = 3 AND lane = ? AND due_at <= ? ORDER BY due_at LIMIT ?)"
                f" RETURNING {ENTRY}",
                (lane, now, limit),
            ).fetchall()
            entries += map(entry_of, rows)
            if len(rows) < limit:
                (next_due,) = db.execute(
                    "SELECT min(due_at) FROM message WHERE state = 3 AND lane = ?", (lane,)
                ).fetchone()
                coming += [next_due] if next_due is not None else []
        return Due(entries, min(coming, default=None))

    # reporting

    def outbox(self, db: sqlite3.Connection, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that wait."""
        rows = db.execute(
            "SELECT seq, message_id, status, body FROM event WHERE settled_at IS NULL AND seq > ?"
            " ORDER BY seq LIMIT ?",
            (after, limit),
        )
        return [OutboxRow(*row) for row in rows]

    def accept(self, db: sqlite3.Connection, rows: Sequence[OutboxRow], at: int) -> None:
        """Mark events as accepted."""
        db.executemany(
            "UPDATE event SET settled_at = ? WHERE message_id = ? AND seq = ?",
            [(at, row.message_id, row.seq) for row in rows],
        )
        db.executemany(
            "UPDATE message SET state = 2 WHERE id = ? AND state = 1",
            [(row.message_id,) for row in rows if row.status == "dequeued"],
        )

    def refuse(self, db: sqlite3.Connection, row: OutboxRow, reason: str, at: int) -> None:
        """Set an event aside."""
        db.execute(
            "UPDATE event SET settled_at = ?, refused = ? WHERE message_id = ? AND seq = ?",
            (at, reason, row.message_id, row.seq),
        )
        if row.status == "dequeued":
            db.execute(
                "UPDATE message SET state = ?, ended_at = ? WHERE id = ? AND state = 1",
                (State.SET_ASIDE, at, row.message_id),
            )

    # receipts

    def receive(self, db: sqlite3.Connection, receipts: Sequence[Receipt]) -> list[str]:
        """Record providers' updates."""
        return [self._receive(db, receipt) for receipt in receipts]

    def _receive(self, db: sqlite3.Connection, receipt: Receipt) -> str:
        attempt = db.execute(
            "SELECT message_id FROM attempt WHERE provider_id = ? AND channel = ?",
            (receipt.provider_id, receipt.channel),
        ).fetchone()
        known = db.execute(
            "SELECT 1 FROM receipt WHERE message_id IS ? AND provider_id = ? AND channel = ? AND delivered = ?",
            (attempt and attempt[0], receipt.provider_id, receipt.channel, receipt.delivered),
        ).fetchone()
        if known:
            return "repeated"
        message_id = attempt[0] if attempt else None
        db.execute("INSERT INTO receipt VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", (*receipt, message_id))
        if message_id is None:
            return "unmatched"
        self._confirm(db, message_id, receipt)
        return "matched"

    def _confirm(self, db: sqlite3.Connection, message_id: int, receipt: Receipt) -> None:
        after = State.DELIVERED if receipt.delivered else State.FAILED
        moved = db.execute(
            "UPDATE message SET state = ?, ended_at = ? WHERE id = ? AND state = ?",
            (after, receipt.received_at, message_id, State.SENT),
        ).rowcount
        if not moved:  # it ended already: a receipt never takes an end back
            return
        if receipt.delivered:
            event = StatusEvent(
                message_id, "delivered", receipt.received_at, receipt.channel, receipt.reported_at
            )
        else:
            details = f"{receipt.channel}: the provider reported {receipt.status}"
            event = StatusEvent(message_id, "error", receipt.received_at, details=details)
        self._put(db, [event])

    def _match_early(self, db: sqlite3.Connection, changes: Sequence[Change]) -> None:
        accepted = [c for c in changes if c.outcome is not None and c.outcome.provider_id is not None]
        if not accepted or not db.execute("SELECT 1 FROM receipt WHERE message_id IS NULL LIMIT 1").fetchone():
            return
        for change in accepted:
            assert change.outcome is not None  # noqa: S101 - the line above chose those that have one
            for seq, *values in db.execute(
                "SELECT seq, channel, provider_id, delivered, status, reported_at, received_at FROM receipt"
                " WHERE message_id IS NULL AND provider_id = ? AND channel = ? ORDER BY seq",
                (change.outcome.provider_id, change.entry.lane),
            ).fetchall():
                db.execute("UPDATE receipt SET message_id = ? WHERE seq = ?", (change.entry.id, seq))
                early = Receipt(*values)
                self._confirm(db, change.entry.id, early._replace(received_at=max(early.received_at, change.at)))

    # start, sums and forgetting

    def recover(self, db: sqlite3.Connection, now: int, lanes: Collection[str]) -> Recovery:
        """Put in order what an earlier run left."""
        is_open = "ended_at IS NULL AND state"
        db.execute(f"UPDATE message SET state = 3, due_at = ? WHERE {is_open} = 2", (now,))
        strange = f"{is_open} = 3 AND lane <> '' AND lane NOT IN (SELECT value FROM json_each(?))"
        known = json.dumps(list(lanes))
        db.execute(f"UPDATE message SET state = 5, due_at = NULL WHERE {strange} AND doubt IS NOT NULL", (known,))
        db.execute(f"UPDATE message SET lane = '', tries = 0 WHERE {strange}", (known,))
        taken = db.execute(f"SELECT {ENTRY} FROM message WHERE {is_open} = 1 ORDER BY id").fetchall()
        doubtful = []
        for state in (State.SENDING, State.IN_DOUBT):
            for row in db.execute(f"SELECT {ENTRY} FROM message WHERE {is_open} = ? ORDER BY id", (state,)):
                entry = entry_of(row)
                doubt = attempt_id(self._namespace, entry.id, entry.attempts)
                doubtful.append(Doubtful(entry._replace(doubt=doubt), state))
        (waiting,) = db.execute(f"SELECT count(*) FROM message WHERE {is_open} = 3").fetchone()
        reporting = db.execute(
            "SELECT DISTINCT message_id FROM event WHERE settled_at IS NULL AND status IN ('sent', 'error')"
        )
        return Recovery([entry_of(row) for row in taken], doubtful, waiting, [row[0] for row in reporting])

    def counts(self, db: sqlite3.Connection) -> Counts:
        """The sums of what is open."""
        states = db.execute("SELECT state, count(*) FROM message WHERE ended_at IS NULL GROUP BY state")
        one = "SELECT count(*) FROM "
        return Counts(
            {State(state): number for state, number in states},
            *(
                db.execute(one + what).fetchone()[0]
                for what in (
                    "event WHERE settled_at IS NULL",
                    "event WHERE refused IS NOT NULL",
                    "malformed",
                    "receipt WHERE message_id IS NULL",
                )
            ),
        )

    def forget(self, db: sqlite3.Connection, before: int, limit: int) -> int:
        """Delete old ended messages, keeping what a repeat would need."""
        rows = db.execute(
            "SELECT id FROM message WHERE ended_at < ? AND NOT EXISTS (SELECT 1 FROM event"
            " WHERE message_id = message.id AND (settled_at IS NULL OR refused IS NOT NULL))"
            " ORDER BY ended_at LIMIT ?",
            (before, limit),
        ).fetchall()
        db.executemany(
            "INSERT INTO past SELECT ?1,"
            " (SELECT body FROM event WHERE message_id = ?1 AND status = 'dequeued' LIMIT 1),"
            " (SELECT body FROM event WHERE message_id = ?1 ORDER BY seq DESC LIMIT 1)",
            rows,
        )
        for table, key in (("event", "message_id"), ("attempt", "message_id"), ("receipt", "message_id"), ("message", "id")):
            db.executemany(f"DELETE FROM {table} WHERE {key} = ?", rows)
        return len(rows)

    # the outbox

    def _put(self, db: sqlite3.Connection, events: Iterable[StatusEvent]) -> None:
        write = self._events.write
        self._insert_events(db, ((event.message_id, event.status, write(event)) for event in events))

    def _insert_events(self, db: sqlite3.Connection, events: Iterable[tuple[int, str, str]]) -> None:
        db.executemany(
            "INSERT INTO event (seq, message_id, status, body) VALUES (?, ?, ?, ?)", self._numbered(events)
        )

    def _numbered(self, events: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, int, str, str]]:
        for event in events:
            self._seq += 1
            yield self._seq, *event


def _known(db: sqlite3.Connection, ids: Sequence[int]) -> set[int]:
    asked = json.dumps(ids)
    return {
        row[0]
        for row in db.execute(
            "SELECT id FROM message WHERE id IN (SELECT value FROM json_each(?1))"
            " UNION SELECT id FROM past WHERE id IN (SELECT value FROM json_each(?1))",
            (asked,),
        )
    }


def _digest(raw: str) -> str:
    return hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()


def _message_row(change: Change, ended: bool) -> tuple[object, ...]:
    entry = change.entry
    spent = _dumps(entry.spent) if entry.spent else "[]"
    return (
        change.after, change.due_at, entry.lane or "", entry.tries, entry.attempts, spent, entry.doubt,
        *((change.at,) if ended else ()),
        entry.id, change.before,
    )  # fmt: skip
