"""What the journal does inside one transaction: plain functions on a connection, each a step of the line."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from deliveryd.errors import IllegalTransition
from deliveryd.journal.account import add_taken
from deliveryd.journal.base import MOST_COUNTED, Due, OutboxRow, Outcome, Recorded, Transition
from deliveryd.journal.outbox import WATERMARK, Outbox, settle_events
from deliveryd.journal.receipt_match import Matching
from deliveryd.journal.repeats import report_again
from deliveryd.journal.rows import ENTRY, entry_of, progress_of, to_json, to_text
from deliveryd.model import Entry, Malformed, QueuedMessage, StatusEvent
from deliveryd.states import ENDED, State, check_transition

_PROGRESS = (
    "UPDATE message SET state = ?, due_at = ?, channel = ?, tries = ?, key = ?, number = ?, spent = ?,"
    " doubt = ?, content = ?, digest = ?"
)
_INTENT = (
    "UPDATE message SET state = 4, channel = ?1, tries = ?2, key = ?3, number = ?4, digest = ?5,"
    " started_at = ?6, content = iif(key = ?3, content, NULL) WHERE id = ?7 AND state = ?8"
)
_ON_ITS_WAY = (  # it leaves `due_at` alone, which decides what is in an index
    "UPDATE message SET state = ?1, channel = ?3, tries = ?4, key = ?5, number = ?6, spent = ?7, doubt = ?8,"
    " content = ?9, digest = ?10 WHERE id = ?11 AND state = ?12"
)
_TO_WAIT = f"{_PROGRESS}, waits_for = ? WHERE id = ? AND state = ?"
_AT_AN_END = f"{_PROGRESS}, ended_at = ? WHERE id = ? AND state = ?"
_SENT = (
    "UPDATE message SET state = 6, tries = ?, doubt = 0, content = NULL, digest = NULL, ended_at = ?,"
    " accepted_at = ?, provider_id = ?, reason = ?{emptied} WHERE id = ? AND state = ?"
)

_UNACCEPTED = (  # before the message moves on: its row still has the try
    "INSERT INTO unaccepted SELECT id, key, number, channel, started_at, ?, ?, ?, ? FROM message"
    " WHERE id = ? AND state = 4"
)
_HOLD = (
    "UPDATE unaccepted SET reason = coalesce(reason || '; ', '') || ?1"
    " WHERE message_id = ?2 AND key = ?3 AND number = ?4 AND instr(coalesce(reason, ''), ?1) = 0"
)

_DUE = (
    f"SELECT {ENTRY} FROM message WHERE state = 3 AND waits_for IS NULL AND channel = ? AND due_at <= ?"  # noqa: S608  # a constant
    " ORDER BY due_at, id LIMIT ?"
)
_LEFT = (
    "SELECT count(*) FROM (SELECT 1 FROM message"
    " WHERE state = 3 AND waits_for IS NULL AND channel = ? AND due_at <= ? LIMIT ?)"
)
_NEXT_DUE = "SELECT min(due_at) FROM message WHERE state = 3 AND waits_for IS NULL AND channel = ?"
_HELD = "waits_for IS NOT NULL AND due_at IS NOT NULL"
_OVERDUE = (
    f"SELECT {ENTRY} FROM message INDEXED BY message_held_until WHERE {_HELD} AND due_at <= ?"  # noqa: S608
    " ORDER BY due_at LIMIT ?"
)
_HELD_UNTIL = f"SELECT min(due_at) FROM message INDEXED BY message_held_until WHERE {_HELD}"  # noqa: S608
_HELD_FOR = f"SELECT {ENTRY} FROM message WHERE waits_for = ? AND due_at IS NOT NULL ORDER BY due_at LIMIT ?"  # noqa: S608
_WAKE = (
    "UPDATE message SET due_at = ?, waits_for = NULL WHERE id IN (SELECT id FROM message"
    " WHERE waits_for IN (SELECT value FROM json_each(?)) AND due_at IS NOT NULL LIMIT ?)"
)
_GO_ON = "UPDATE message SET state = 2, due_at = NULL, waits_for = NULL WHERE id = ?"
_RETIME = "UPDATE message SET due_at = min(due_at - ?1, ?2) WHERE state = 3 AND (?1 > 0 OR due_at > ?2)"
_HASTEN = "UPDATE message SET due_at = min(due_at, ?) WHERE id = ? AND state = 3"
_OUTBOX = (
    f"SELECT seq, message_id, status, body FROM event WHERE seq > max(?, {WATERMARK}) ORDER BY seq LIMIT ?"  # noqa: S608
)
_LET_GO = (
    "UPDATE message SET state = 2 WHERE state = 1 AND id IN"
    " (SELECT message_id FROM event WHERE seq BETWEEN ? AND ? AND status = 'dequeued')"
)
_SET_ASIDE_NO_MORE = (  # an operator's word stays
    f"SELECT {ENTRY} FROM message WHERE state = 9 AND id IN (SELECT message_id FROM event"  # noqa: S608
    " WHERE seq BETWEEN ? AND ? AND status = 'dequeued' AND dropped_at IS NULL) ORDER BY id"
)
_HIGHEST = "SELECT max(id) FROM message UNION ALL SELECT max(id) FROM tombstone"


class Operations:
    """The steps that the line takes."""

    def __init__(self, outbox: Outbox, matching: Matching, emptied: str) -> None:
        self._outbox = outbox
        self._matching = matching
        self._sent = _SENT.format(emptied=emptied)

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
            [(m.id, m.settings_id, m.customer_id, to_json(m.variables), at) for m in new.values()],
        )
        self._outbox.put(db, (StatusEvent(id_, "dequeued", at) for id_ in new))
        failed = self._set_aside(db, malformed, known | new.keys(), at)
        add_taken(db, len(new) + failed)
        report_again(db, self._outbox, known, at)
        return set(new)

    def _set_aside(
        self, db: sqlite3.Connection, malformed: Sequence[Malformed], known: set[int], at: int
    ) -> int:
        """Keep malformed elements; return how many of them are messages, with an id that wasn't known."""
        before = len(known)
        for bad in malformed:
            raw, reason = to_text(bad.raw), to_text(bad.reason)
            db.execute(
                "INSERT INTO malformed (digest, raw, reason, message_id, first_at, last_at)"
                " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE"
                " SET times = times + 1, last_at = excluded.last_at, dropped_at = NULL",
                (_digest(bad.raw), raw, reason, bad.id, at, at),
            )
            if bad.id is None or bad.id in known:
                continue
            known.add(bad.id)
            db.execute(
                "INSERT INTO message (id, state, taken_at, ended_at) VALUES (?, ?, ?, ?)",
                (bad.id, State.FAILED, at, at),
            )
            error = StatusEvent(bad.id, "error", at, details=f"malformed message: {bad.reason}")
            self._outbox.put(db, [StatusEvent(bad.id, "dequeued", at), error])
        return len(known) - before

    # delivery

    def change(self, db: sqlite3.Connection, transitions: Sequence[Transition]) -> Recorded:
        """Record steps of messages, with their tries and events, and apply the receipts kept for them."""
        return self._matching.match_around(db, transitions, self._record)

    def _record(self, db: sqlite3.Connection, transitions: Sequence[Transition]) -> None:
        _conclude(db, transitions)
        _move(db, transitions, self._sent)
        self._outbox.put(db, (event for transition in transitions for event in transition.events))

    def retime(self, db: sqlite3.Connection, back: int, latest: int) -> None:
        """Bring due times in line with a clock that was put back, and let none be later than `latest`."""
        if back:
            self._outbox.note_step(db)
        db.execute(_RETIME, (back, latest))

    def hasten(self, db: sqlite3.Connection, due: Mapping[int, int]) -> None:
        """Let waiting messages be due at these instants, if they aren't earlier."""
        db.executemany(_HASTEN, [(at, id_) for id_, at in due.items()])

    def due(self, db: sqlite3.Connection, now: int, room: Mapping[str, int]) -> Due:
        """Make waiting messages READY whose time has come."""
        entries: list[Entry] = []
        coming: list[int] = []
        left = 0
        for channel, limit in room.items():
            found = _go_on(db, db.execute(_DUE, (channel, now, limit)))
            entries += found
            if len(found) < limit:
                (next_due,) = db.execute(_NEXT_DUE, (channel,)).fetchone()
                coming += [next_due] if next_due is not None else []
            else:
                left += db.execute(_LEFT, (channel, now, MOST_COUNTED)).fetchone()[0]
        return Due(entries, min(coming, default=None), left)

    def overdue(self, db: sqlite3.Connection, now: int, limit: int) -> Due:
        """Make messages READY that have waited for something for long enough."""
        entries = _go_on(db, db.execute(_OVERDUE, (now, limit)))
        return Due(entries, db.execute(_HELD_UNTIL).fetchone()[0])

    def resume(self, db: sqlite3.Connection, waits_for: Sequence[str], limit: int) -> list[Entry]:
        """Make messages READY that wait for one of these."""
        entries: list[Entry] = []
        for each in waits_for:
            entries += _go_on(db, db.execute(_HELD_FOR, (each, limit - len(entries))))
        return entries

    def wake(self, db: sqlite3.Connection, waits_for: Collection[str], at: int, limit: int) -> int:
        """Let messages be due that wait for one of these."""
        return db.execute(_WAKE, (at, to_json(list(waits_for)), limit)).rowcount

    # reporting

    def outbox(self, db: sqlite3.Connection, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that wait."""
        return [OutboxRow(*row) for row in db.execute(_OUTBOX, (after, limit))]

    def accept(self, db: sqlite3.Connection, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Mark events as accepted; return the messages that were set aside and may be sent now."""
        settled = settle_events(db, rows)
        if not settled:
            return []
        self._outbox.note(db, at)
        db.execute("INSERT INTO post (last, first, at) VALUES (?, ?, ?)", (settled[-1], settled[0], at))
        dequeued = sum(row.status == "dequeued" for row in rows)
        if not dequeued or db.execute(_LET_GO, (settled[0], settled[-1])).rowcount == dequeued:
            return []
        return _reopen(db, settled)

    def refuse(self, db: sqlite3.Connection, row: OutboxRow, reason: str, at: int) -> int:
        """Set an event aside; return how often it was refused by now."""
        if not settle_events(db, [row]):
            return 0
        self._outbox.note(db, at)
        db.execute(
            "UPDATE event SET refused_at = ?, refused = ?, refusals = coalesce(refusals, 0) + 1"
            " WHERE seq = ?",
            (at, to_text(reason), row.seq),
        )
        if row.status == "dequeued":
            db.execute(
                "UPDATE message SET state = ?, ended_at = ? WHERE id = ? AND state = 1",
                (State.SET_ASIDE, at, row.message_id),
            )
        found = db.execute("SELECT refusals FROM event WHERE seq = ?", (row.seq,)).fetchone()
        return 0 if found is None else int(found[0])


def _reopen(db: sqlite3.Connection, accepted: range) -> list[Entry]:
    """Make READY what was set aside, and whose `dequeued` the service accepted after all."""
    entries = [entry_of(row) for row in db.execute(_SET_ASIDE_NO_MORE, (accepted[0], accepted[-1]))]
    after = check_transition(State.SET_ASIDE, State.READY)
    db.executemany(
        "UPDATE message SET state = ?, ended_at = NULL WHERE id = ?", [(after, entry.id) for entry in entries]
    )
    return entries


def _go_on(db: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
    entries = [entry_of(row) for row in rows]
    db.executemany(_GO_ON, [(entry.id,) for entry in entries])
    return entries


def _known(db: sqlite3.Connection, ids: Sequence[int]) -> set[int]:
    """Which of these ids were seen before: none, as a rule, and where ids grow two looks tell that."""
    highest = [id_ for (id_,) in db.execute(_HIGHEST) if id_ is not None]
    if not ids or not highest or max(highest) < min(ids):
        return set()
    rows = db.execute(
        "SELECT id FROM message WHERE id IN (SELECT value FROM json_each(?1))"
        " UNION SELECT id FROM tombstone WHERE id IN (SELECT value FROM json_each(?1))",
        (to_json(ids),),
    )
    return {row[0] for row in rows}


def _digest(raw: str) -> str:
    return hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()


def _move(db: sqlite3.Connection, transitions: Sequence[Transition], sent_statement: str) -> None:
    """Move messages from state to state, all of them or none. Raises IllegalTransition."""
    begun = []
    on_its_way = []
    to_wait = []
    sent = []
    at_an_end = []
    for transition in transitions:
        entry, before = transition.entry, transition.before
        after = check_transition(before, transition.after)
        if after is State.SENT:
            sent.append((entry.tries, transition.at, *_accepted(transition), entry.id, before))
        elif after in ENDED or before in ENDED:  # only these write the indexed column `ended_at`
            ended_at = transition.at if after in ENDED else None
            at_an_end.append((*progress_of(transition), ended_at, entry.id, before))
        elif after is State.WAITING or before is State.WAITING:
            to_wait.append((*progress_of(transition), transition.waits_for, entry.id, before))
        elif after is State.SENDING:
            begun.append((*_try_of(entry), transition.at, entry.id, before))
        else:
            on_its_way.append((*progress_of(transition), entry.id, before))
    moved = sum(
        db.executemany(statement, rows).rowcount
        for statement, rows in (
            (_INTENT, begun),
            (_ON_ITS_WAY, on_its_way),
            (_TO_WAIT, to_wait),
            (sent_statement, sent),
            (_AT_AN_END, at_an_end),
        )
        if rows
    )
    if moved != len(transitions):
        raise IllegalTransition(
            f"{len(transitions) - moved} of {len(transitions)} messages weren't where they should be"
        )


def _try_of(entry: Entry) -> tuple[str, int, int, int, bytes | None]:
    """What an intent writes of its try."""
    return entry.channel or "", entry.tries, entry.key, entry.number, entry.digest


def _accepted(transition: Transition) -> tuple[int | None, str | None, str | None]:
    """What a message's row has of its accepted attempt: the instant, the provider's id, the reason."""
    if transition.outcome is None:
        return None, None, None
    _verdict, provider_id, reason = transition.outcome
    return transition.at, to_text(provider_id), to_text(reason)


def _conclude(db: sqlite3.Connection, transitions: Sequence[Transition]) -> None:
    """Record the outcomes of tries that weren't accepted; all others stand in their message's row."""
    ended = []
    held = []
    for transition in transitions:
        entry, before, after, outcome = (
            transition.entry,
            transition.before,
            transition.after,
            transition.outcome,
        )
        if before is State.SENDING and after is not State.SENT:
            ended.append((*_outcome(outcome, transition.at), entry.id))
        elif after is State.IN_DOUBT and outcome is not None:
            held.append((to_text(outcome.reason), entry.id, entry.key, entry.number))
    for statement, rows in ((_UNACCEPTED, ended), (_HOLD, held)):
        if rows:
            db.executemany(statement, rows)


def _outcome(outcome: Outcome | None, at: int) -> tuple[int | None, str | None, str | None, str | None]:
    """The columns of a try: ended_at, verdict, provider_id, reason."""
    if outcome is None:
        return None, None, None, None
    verdict, provider_id, reason = outcome
    return at, verdict, to_text(provider_id), to_text(reason)
