"""The record of one message, read from its journal."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from deliveryd.journal.base import Turn
from deliveryd.journal.pauses import Pause
from deliveryd.journal.rows import IDS, SENT_IN_PART, spent_of, to_json
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.deletion import Tombstone, read_tombstones
from deliveryd.journal.sql.outbox import ACCEPTED_AT, HAPPENED, WAITS
from deliveryd.journal.sql.pauses import pauses
from deliveryd.journal.sql.turns import turn_of
from deliveryd.model import Spent, message_key
from deliveryd.runtime.json_numbers import loads_variables
from deliveryd.states import State


class MessageRecord(NamedTuple):
    """A message's current row. Settings, customer and variables are None if its element was malformed.

    `sent_in_part`: see `Entry.is_sent_in_part`; then no device that waits is said to be in doubt.
    Variables are also None once the message was sent; a variable's value is None if it was omitted (see
    `without_values`). `key` is the idempotency key of the latest try; None if there was none.
    `pause`: the one that it waits for. `worker`: the name of the one that has it, on a journal of several.
    """

    settings_id: int | None
    customer_id: int | None
    variables: Mapping[str, str | None] | None
    state: State
    taken_at: int
    due_at: int | None
    lane: str | None
    tries: int
    key: str | None
    spent: tuple[Spent, ...]
    doubt: bool
    ended_at: int | None
    waits_for: str | None = None
    confirm_within: float | None = None
    sent_in_part: bool = False
    worker: str | None = None
    pause: Pause | None = None
    turn: Turn | None = None


class AttemptRecord(NamedTuple):
    """A try under a key. One that was in doubt and is settled as sent appears twice, with both outcomes.

    `stay` counts the providers that took the message up, and `number` the tries of this stay.
    """

    key: str
    stay: int
    number: int
    provider: str
    started_at: int
    ended_at: int | None
    verdict: str | None
    provider_id: str | None
    reason: str | None
    words: str | None = None


class EventRecord(NamedTuple):
    """A status event and its JSON; `settled_at` is when the service accepted or refused it.

    `worker`: the name of the one that recorded it, on a journal of several.
    """

    seq: int
    status: str
    body: str
    settled_at: int | None
    refused: str | None
    worker: str | None = None


class ReceiptRecord(NamedTuple):
    """A receipt that was matched to the message."""

    provider: str
    provider_id: str
    delivered: bool
    status: str
    reported_at: int
    received_at: int


class MalformedRecord(NamedTuple):
    """A malformed element with the message's id; `raw` is None if it was omitted."""

    raw: str | None
    reason: str
    first_at: int
    last_at: int
    times: int


class DecisionRecord(NamedTuple):
    """An operator's order for the message; `caller`: on whose behalf, as the user claimed; `reason`: why."""

    at: int
    verb: str
    kind: str
    key: str
    user: str | None
    caller: str | None
    reason: str | None


class Life(NamedTuple):
    """Everything that the journal has about one message id."""

    id: int
    message: MessageRecord | None
    attempts: tuple[AttemptRecord, ...]
    events: tuple[EventRecord, ...]
    receipts: tuple[ReceiptRecord, ...]
    malformed: tuple[MalformedRecord, ...]
    decisions: tuple[DecisionRecord, ...]
    tombstone: Tombstone | None

    told_as: int
    """The id as the service has it; see `ids_as_told`."""

    @property
    def is_known(self) -> bool:
        """Whether the journal has any record of this id."""
        return self.message is not None or self.tombstone is not None or bool(self.malformed)


_FIRST_BODIES = f"SELECT message_id, min(body) FROM event WHERE message_id IN {IDS} GROUP BY message_id"  # noqa: S608


def ids_as_told(db: Db, numbers: Collection[int]) -> Mapping[int, int]:
    """Return ids as the service has them, by the negative numbers that the journal keeps messages under.

    Events and tombstones have an id beyond 64 bits as it was written; see `number_of`.
    """
    negative = sorted({number for number in numbers if number < 0})
    if not negative:
        return {}
    remembered = read_tombstones(db, negative).items()
    bodies = {number: text for number, tombstone in remembered for text in tombstone if text}
    bodies.update(db.execute(_FIRST_BODIES, (to_json(negative),)).fetchall())
    return {number: json.loads(body)["messageId"] for number, body in bodies.items()}


def without_values(life: Life) -> Life:
    """Return the same record without what could identify a customer: values of variables, raw elements."""
    message = life.message
    if message is not None and message.variables is not None:
        message = message._replace(variables=dict.fromkeys(message.variables))
    malformed = tuple(record._replace(raw=None) for record in life.malformed)
    return life._replace(message=message, malformed=malformed)


_EVENTS = f"""
SELECT seq, status, body, iif({WAITS}, NULL, coalesce(refused_at, {ACCEPTED_AT})), refused
FROM event WHERE message_id = ? ORDER BY {HAPPENED}, seq
"""  # noqa: S608  # constants


_DECISIONS = """
SELECT at, verb, kind, key, "user", caller, reason FROM (
    SELECT * FROM decision WHERE message_id = ?1
    UNION ALL SELECT * FROM decision WHERE message_id IS NULL AND kind = 'message' AND key = CAST(?1 AS TEXT)
) ORDER BY seq
"""


def _turn(db: Db, message_id: int, message: MessageRecord) -> Turn | None:
    if message.waits_for is None or message.due_at is None or message.settings_id is None:
        return None
    return turn_of(db, message_id, message.settings_id, message.waits_for, message.due_at)


def life_of(db: Db, message_id: int, worker: str | None = None) -> Life:
    """Return everything about a message, whose log `worker` has; for a read transaction."""

    def rows(statement: str) -> list[Any]:
        return db.execute(statement, (message_id,)).fetchall()

    (namespace,) = db.execute("SELECT value FROM meta WHERE key = 'namespace'").fetchone()
    messages = rows(
        "SELECT settings_id, customer_id, variables, state, taken_at, due_at, provider, counted_tries, NULL,"  # noqa: S608  # a constant
        " spent, doubt, ended_at, waits_for,"
        " (confirm_by - (SELECT listened FROM log)) / CAST(1e6 AS DOUBLE PRECISION)"
        f", iif({SENT_IN_PART}, 1, 0) FROM message WHERE id = ?"
    )
    attempts = [
        AttemptRecord(message_key(namespace, message_id, each[2], generation), *each)
        for generation, *each in rows(
            "SELECT generation, stay, stay_tries, provider, started_at, ended_at, verdict, provider_id,"
            " reason, words FROM attempt WHERE message_id = ?"
            " ORDER BY stay, stay_tries, ended_at IS NULL, ended_at"
        )
    ]
    events = rows(_EVENTS)
    receipts = rows(
        "SELECT provider, provider_id, delivered, status, reported_at, received_at"
        " FROM receipt WHERE message_id = ? ORDER BY received_at, seq"
    )
    malformed = rows(
        "SELECT raw, reason, first_at, last_at, times FROM malformed WHERE message_id = ? ORDER BY first_at"
    )
    decisions = rows(_DECISIONS)
    message = None
    if messages:
        [row] = messages
        message = MessageRecord(*row)
        message = message._replace(
            worker=worker,
            pause=next((each for each in pauses(db) if each.waits_for == message.waits_for), None),
            key=attempts[-1].key if attempts else None,
            doubt=bool(message.doubt and not message.sent_in_part),
            sent_in_part=bool(message.sent_in_part),
            variables=None if message.variables is None else loads_variables(row[2]),
            turn=_turn(db, message_id, message),
            state=State(message.state),
            lane=message.lane or None,
            spent=spent_of(row[9]),
        )
    return Life(
        id=message_id,
        message=message,
        attempts=tuple(attempts),
        events=tuple(EventRecord(*row)._replace(worker=worker) for row in events),
        receipts=tuple(ReceiptRecord(*row)._replace(delivered=bool(row[2])) for row in receipts),
        malformed=tuple(MalformedRecord(*row) for row in malformed),
        decisions=tuple(DecisionRecord(*row) for row in decisions),
        tombstone=read_tombstones(db, [message_id]).get(message_id),
        told_as=ids_as_told(db, [message_id]).get(message_id, message_id),
    )
