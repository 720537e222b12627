"""Entries, steps and receipts that the cases of journals record, and ways to bring a message to a state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deliveryd.journal.base import OutboxRow
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, Decided, ItemKind, Order
from deliveryd.model import (
    Confirmation,
    Entry,
    Outcome,
    QueuedMessage,
    Receipt,
    StatusEvent,
    Transition,
    message_key,
)
from deliveryd.states import State

NOW = 1_700_000_000_000_000
ONE_SECOND = 1_000_000
DAYS_LATER = NOW + 3 * 86_400 * ONE_SECOND
"""When the day of NOW is over: a journal may forget by whole days."""


def sample_message(id_: int, **variables: str) -> QueuedMessage:
    return QueuedMessage(id_, id_ % 10**15 * 10, id_ % 10**15 * 100, variables)


def sample_entry(id_: int, **progress: Any) -> Entry:
    return Entry(*sample_message(id_), taken_at=NOW)._replace(**progress)


def sample_receipt(provider_id: str = "p1", at: int = NOW + 9, *, delivered: bool = True) -> Receipt:
    return Receipt("sms", provider_id, delivered, "DELIVRD" if delivered else "UNDELIV", at - 1, at)


async def receive_all(journal: Journal, receipts: Sequence[Receipt]) -> list[str]:
    """Record receipts; the words that their providers are answered with."""
    return [each.result for each in await journal.receive(receipts)]


async def waiting_events(journal: Journal) -> list[tuple[int, str]]:
    """The outbox, as message ids and statuses."""
    return [(row.message_id, row.status) for row in await journal.outbox(0, 100_000)]


async def accept_all(journal: Journal, at: int = NOW) -> list[OutboxRow]:
    """The service accepts all that waits."""
    rows = await journal.outbox(0, 100_000)
    await journal.accept(rows, at)
    return rows


async def state_counts(journal: Journal) -> dict[State, int]:
    return dict((await journal.counts()).states)


async def make_ready(journal: Journal, *ids: int) -> None:
    """Take messages and have their `dequeued` accepted."""
    await journal.take([sample_message(id_) for id_ in ids], [], NOW)
    await accept_all(journal)


async def begin_attempts(journal: Journal, *entries: Entry) -> None:
    """Commit the intents of attempts."""
    await journal.change([Transition(entry, State.READY, State.SENDING, NOW) for entry in entries])


def key_of(journal: Journal, provider: str = "sms", beginning: int = 1) -> str:
    """The idempotency key of message 7 at a provider."""
    return message_key(journal.namespace, 7, provider, beginning)


def attempt_on(id_: int, provider: str = "sms", number: int = 1, key: int = 1) -> Entry:
    return sample_entry(id_, provider=provider, stay=key, stay_tries=number, digest=b"12345678", begun_at=NOW)


def accepted_step(entry: Entry, provider_id: str | None) -> Transition:
    """The channel accepted the message."""
    return Transition(
        entry,
        State.SENDING,
        State.SENT,
        NOW + 5,
        outcome=Outcome("accepted", provider_id),
        events=(StatusEvent(entry.id, "sent", NOW + 5),),
    )


async def hand_over(journal: Journal, id_: int, provider_id: str | None = "p1") -> None:
    """Bring a message from the queue to SENT; the service is still to hear of that."""
    await make_ready(journal, id_)
    await begin_attempts(journal, attempt_on(id_))
    await journal.change([accepted_step(attempt_on(id_), provider_id)])


async def deliver_to_sent(journal: Journal, id_: int, provider_id: str | None = "p1") -> None:
    """Bring a message from the queue to SENT, with all its events accepted."""
    await hand_over(journal, id_, provider_id)
    await accept_all(journal)


async def refuse_sent(journal: Journal) -> OutboxRow:
    """The service refuses the only event that waits, a `sent`."""
    (sent,) = await journal.outbox(0, 9)
    assert sent.status == "sent"
    await journal.refuse(sent, "400", NOW)
    return sent


async def bring_to_wait(journal: Journal, id_: int, due_at: int, provider: str | None = None) -> None:
    """Bring a message from the queue to WAITING."""
    await make_ready(journal, id_)
    await journal.change(
        [Transition(sample_entry(id_, provider=provider), State.READY, State.WAITING, NOW, due_at)]
    )


async def refuse_first(journal: Journal, at: int) -> OutboxRow:
    """The service refuses what waits first."""
    (row,) = await journal.outbox(0, 1)
    await journal.refuse(row, "400", at)
    return row


async def bring_in_doubt(journal: Journal, id_: int, after: State = State.IN_DOUBT) -> Entry:
    """Bring a message from the queue to an attempt in doubt that is held, or that waits to be repeated."""
    await make_ready(journal, id_)
    await begin_attempts(journal, attempt_on(id_))
    entry = attempt_on(id_)._replace(doubt=True)
    due_at = NOW + ONE_SECOND if after is State.WAITING else None
    await journal.change([Transition(entry, State.SENDING, after, NOW, due_at, Outcome("in_doubt"))])
    return entry


def echoed_receipt(reference: str, provider_id: str = "q1", *, delivered: bool = True) -> Receipt:
    return sample_receipt(provider_id, delivered=delivered)._replace(reference=reference)


async def tried(journal: Journal, state: State) -> None:
    """A message 7 that was tried on sms, and is in some state under the key of this try."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))
    entry, waits = attempt_on(7), NOW + ONE_SECOND
    doubtful = entry._replace(doubt=True)
    match state:
        case State.WAITING:
            step = Transition(entry, State.SENDING, state, NOW + 1, waits, Outcome("try_again"))
        case State.IN_DOUBT:
            step = Transition(doubtful, State.SENDING, state, NOW + 1, outcome=Outcome("in_doubt"))
        case State.FAILED:
            error = StatusEvent(7, "error", NOW + 1, details="sms: outcome unknown after 1 tries")
            step = Transition(
                doubtful, State.SENDING, state, NOW + 1, outcome=Outcome("in_doubt"), events=(error,)
            )
        case _:
            step = accepted_step(entry, "p1")
    await journal.change([step])
    if state is State.DELIVERED:
        await journal.receive([sample_receipt("p1")])
    await accept_all(journal)


async def outbox_bodies(journal: Journal) -> list[tuple[str, str | None, str | None]]:
    """What the service will hear: status, channel, details."""
    found = [json.loads(row.body) for row in await journal.outbox(0, 100)]
    return [(body["status"], body.get("channel"), body.get("details")) for body in found]


REPORTED_UNDELIVERED = "sms: the provider reported UNDELIV"


async def gone_on(journal: Journal, state: State) -> None:
    """A message 7 that was tried on sms under its first key, and went on to email, to some state there."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))
    left = attempt_on(7).given_up("provider answered 503")
    await journal.change(
        [Transition(left, State.SENDING, State.READY, NOW + 1, outcome=Outcome("try_again"))]
    )
    entry = left.begun("email", b"87654321", NOW + 2)
    if state is State.READY:
        return
    if state is State.WAITING:  # for the room of the provider
        await journal.change([Transition(left.bound("email"), State.READY, state, NOW + 2, NOW + ONE_SECOND)])
        return
    await journal.change([Transition(entry, State.READY, State.SENDING, NOW + 2)])
    if state is State.SENT:
        await journal.change([accepted_step(entry, "e1")])
    elif state is State.IN_DOUBT:
        doubtful = entry._replace(doubt=True)
        await journal.change(
            [
                Transition(
                    doubtful, State.SENDING, state, NOW + 3, outcome=Outcome("in_doubt", None, "cut off")
                )
            ]
        )
    await accept_all(journal)


async def decide_on(journal: Journal, verb: Action, kind: ItemKind, *keys: object) -> Decided:
    return await journal.decide(Order(verb, kind, tuple(map(str, keys))), NOW + 9, ["sms"])


def unnamed_failure(journal: Journal, reference: str, beginning: int, at: int) -> Receipt:
    """A failure of message 7 by a provider without ids; in the reference KEY stands for a beginning's key."""
    named = reference.replace("KEY", key_of(journal, beginning=beginning))
    return sample_receipt("", at, delivered=False)._replace(reference=named)


async def fail_and_begin_anew(
    journal: Journal, reference: str, confirmation: Confirmation | None = None
) -> int:
    """Have message 7, which failed in doubt, reported as failed and sent anew; returns its beginning."""
    await tried(journal, State.FAILED)
    assert await receive_all(journal, [unnamed_failure(journal, reference, 1, NOW + 9)]) == ["matched"]
    await accept_all(journal)
    await decide_on(journal, Action.BEGIN_ANEW_ANYWAY, ItemKind.MESSAGE, 7)
    (entry,) = (await journal.due(NOW + 20, {"": 9})).entries
    begun = entry.begun("sms", b"12345678", NOW + 20)
    await journal.change([Transition(begun, State.READY, State.SENDING, NOW + 20)])
    await journal.change([accepted_step(begun, None)._replace(confirmation=confirmation)])
    await accept_all(journal)
    return begun.generation
