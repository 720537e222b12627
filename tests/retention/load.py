"""One day of a journal: every kind of message, receipt and refusal, and work that outlasts its retention."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.model import (
    Confirmation,
    Entry,
    Malformed,
    Outcome,
    QueuedMessage,
    Receipt,
    StatusEvent,
    Transition,
)
from deliveryd.states import State

SECOND = 1_000_000
DAY = 86_400 * SECOND
FIRST_DAY = 20_000 * DAY
BATCH = 50
_SHARES = {"waits": 1, "fails": 3, "confirmed": 6, "unconfirmed": 2, "refused": 1}
"""Messages of a batch that don't just go the straight way."""


@dataclass
class Tally:
    """What the load did so far."""

    taken: int = 0
    steps: int = 0
    receipts: int = 0
    listened: int = 0
    refused: list[tuple[int, int]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))


async def live_a_day(journal: Journal, day: int, batches: int, stay: int, tally: Tally) -> None:
    """Record a day's messages. `stay`: days for which some wait, and refused events aren't retried."""
    for number in range(batches):
        at = FIRST_DAY + day * DAY + (number + 1) * DAY // (batches + 2)
        await _live_a_batch(journal, at, stay, tally)
        await _go_on_with_what_waits(journal, at, tally)
    await _retry_refused(journal, FIRST_DAY + (day + 1) * DAY - SECOND, stay, tally)


async def _live_a_batch(journal: Journal, at: int, stay: int, tally: Tally) -> None:
    ids = [next(tally.numbers) for _ in range(BATCH)]
    messages = [QueuedMessage(id_, 7, id_, {"name": f"customer {id_}"}) for id_ in ids]
    bad = Malformed(f'{{"odd": {ids[0]}}}', "no id", None)
    new = await journal.take(
        [*messages, QueuedMessage(ids[0] - min(200, ids[0] % 10_000_000 - 1), 7, 1, {})], [bad], at
    )
    assert set(ids) <= set(new)
    tally.taken += len(new)
    await _accept(journal, at, tally)
    entries = [Entry(*message, taken_at=at) for message in messages]
    parts = {name: [entries.pop() for _ in range(count)] for name, count in _SHARES.items()}
    late = parts.pop("waits")
    await journal.change([Transition(each, State.READY, State.WAITING, at, at + stay * DAY) for each in late])
    tried = {name: [_begun(each, "sms", at) for each in some] for name, some in parts.items()}
    straight = [_begun(each, "sms", at) for each in entries]
    await _change(
        journal, tally, [_intent(each, at) for each in [*straight, *itertools.chain(*tried.values())]]
    )
    confirmation = Confirmation(tally.listened + DAY, DAY, failed_next=True)
    await _change(
        journal,
        tally,
        [
            *(_sent(each, at) for each in [*straight, *tried["refused"]]),
            *(
                _sent(each, at)._replace(confirmation=confirmation)
                for each in [*tried["confirmed"], *tried["unconfirmed"]]
            ),
            *(_failed(each, at) for each in tried["fails"]),
        ],
    )
    await _accept(journal, at, tally, {each.id for each in tried["refused"]})
    known = [f"p{each.id}" for each in [*straight, *tried["confirmed"]]]
    receipts = [Receipt("sms", name, True, "DELIVRD", at, at) for name in [*known, f"unknown {ids[0]}"]]
    tally.receipts += len(await journal.receive(receipts))
    await _accept(journal, at, tally)


async def _go_on_with_what_waits(journal: Journal, at: int, tally: Tally) -> None:
    """Deadlines that passed, and what waited for its time, go out by mail."""
    tally.listened = (await journal.pass_deadlines(DAY // 8, at, ["sms", "email"], 1000)).listened
    due = await journal.due(at, {"": 1000, "sms": 1000})
    begun = [_begun(each, "email", at) for each in due.entries]
    await _change(journal, tally, [_intent(each, at) for each in begun])
    await _change(journal, tally, [_sent(each, at) for each in begun])
    await _accept(journal, at, tally)


async def _accept(journal: Journal, at: int, tally: Tally, refused: set[int] | None = None) -> None:
    """The service accepts all that waits, but the last event of some messages."""
    rows = await journal.outbox(0, 100_000)
    for row in rows:
        if refused and row.message_id in refused and row.status == "sent":
            await journal.refuse(row, "400", at)
            tally.refused.append((at, row.seq))
        else:
            await journal.accept([row] if refused else rows, at)
            if not refused:
                return


async def _retry_refused(journal: Journal, at: int, stay: int, tally: Tally) -> None:
    old = [seq for since, seq in tally.refused if since <= at - stay * DAY]
    tally.refused = [each for each in tally.refused if each[1] not in old]
    if old:
        order = Order(Action.RETRY, ItemKind.EVENT, tuple(map(str, old)))
        assert len((await journal.decide(order, at, ["sms", "email"])).done) == len(old)
        await _accept(journal, at, tally)


async def _change(journal: Journal, tally: Tally, steps: Sequence[Transition]) -> None:
    if steps:
        await journal.change(steps)
        tally.steps += len(steps)


def _begun(entry: Entry, provider: str, at: int) -> Entry:
    return entry.begun(provider, b"12345678", at)


def _intent(entry: Entry, at: int) -> Transition:
    return Transition(entry, State.READY, State.SENDING, at)


def _sent(entry: Entry, at: int) -> Transition:
    name = f"p{entry.id}" if entry.provider == "sms" else f"e{entry.id}"
    told = () if entry.sent_by else (StatusEvent(entry.id, "sent", at),)
    return Transition(entry, State.SENDING, State.SENT, at, outcome=Outcome("accepted", name), events=told)


def _failed(entry: Entry, at: int) -> Transition:
    error = StatusEvent(entry.id, "error", at, details="sms: refused")
    return Transition(
        entry, State.SENDING, State.FAILED, at, outcome=Outcome("refused", None, "no"), events=(error,)
    )
