"""The history of one message, in order of time, as text or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from deliveryd.commands.common.tables import length, moment, with_instants
from deliveryd.commands.messages.due_times import DueTime
from deliveryd.journal.base import MOST_COUNTED, Turn
from deliveryd.journal.orders import Action
from deliveryd.journal.pauses import pause_data
from deliveryd.journal.sql.deletion import Tombstone
from deliveryd.journal.sql.history import (
    AttemptRecord,
    DecisionRecord,
    EventRecord,
    Life,
    MessageRecord,
    ReceiptRecord,
)
from deliveryd.model import AT_ONCE, NEVER, SECOND, channel_of, parse_instant
from deliveryd.runtime.waits import WINDOW, awaited
from deliveryd.states import State

STATES: Mapping[State, str] = {
    State.TAKEN: "taken; nothing is sent before the service has accepted its dequeued event",
    State.READY: "ready; being prepared, or queued at its provider",
    State.WAITING: "waiting until it is due",
    State.SENDING: "being sent; if its worker was killed, the next start or another worker resolves it",
    State.IN_DOUBT: "in doubt and held for a decision: an attempt was sent, its outcome is unknown",
    State.SENT: "sent; a channel accepted it",
    State.DELIVERED: "delivered; the provider confirmed it",
    State.FAILED: "failed; it ended with an error event",
    State.SET_ASIDE: "set aside; the service refused its dequeued event, so it isn't sent",
}
"""What each state means to an operator."""

PAUSED_TEXT = "paused; waiting until it is resumed, or expires"
RECEIPT_MAY_FOLLOW = ", and a provider's receipt may still follow"

PRUNED = "pruned; it ended longer ago than journal.retention, and only these events are kept"
ERASED = "erased by an operator; only these events are kept"
EMPTIED_TEXT = "removed after sending (journal.keep_variables)"
NEVER_TAKEN = "never taken; only malformed elements had this id"

VERDICT_TEXTS: Mapping[str, str] = {
    "accepted": "accepted by the provider",
    "refused": "refused for good",
    "stopped": "refused: the recipient can't be reached on this channel any more",
    "try_again": "not accepted now",
    "in_doubt": "in doubt: the outcome is unknown",
    "misconfigured": "rejected: the channel is misconfigured",
    "expired": "not made: the message expired",
}
"""The verdicts of attempts."""


_AT_ITS_TIME: Mapping[str, str] = {
    WINDOW: "its window opens",
    "budget": "the budget has a new period",
    "cap": "its customer may get more by the cap",
}
"""What a message waits for that is due when that happens, by the beginning of `waits_for`."""


class Step(NamedTuple):
    """An event in a message's history at an instant (None: unknown or in the future), with details."""

    at: int | None
    what: str
    facts: tuple[str, ...] = ()


def life_lines(
    life: Life,
    reporting: Collection[str],
    reference: str | None = None,
    priority: str | None = None,
    rate: str | None = None,
    *,
    due: DueTime | None = None,
) -> Sequence[str]:
    """Return the history as lines: one per step, with its details below.

    `reporting` are the providers that send receipts, `reference` is that of the settings, `priority` the one
    that a rule gives them, `rate` that of its provider, and `due` what happens when it is due, if known.
    """
    steps = chronicle(life, due)
    begin = next((step.at for step in steps if step.at is not None), 0)
    return [
        *_heading(life, reporting, reference, priority, rate),
        "",
        *(line for step in steps for line in _lines(step, begin)),
    ]


def chronicle(life: Life, due: DueTime | None = None) -> Sequence[Step]:
    """Return all steps in order of time, those without a time last."""
    steps = [*_intake(life), *_repeats(life)]
    for attempts in _tries(life):
        steps += _attempt(attempts)
    steps += [_receipt(receipt) for receipt in life.receipts]
    steps += [_decision(decision) for decision in life.decisions]
    for event in _first_events(life):
        steps += _event(event)
    if life.tombstone is not None:
        steps += _remembered(life.tombstone)
    if life.message is not None:
        steps += _next_steps(life.message, due)
    return sorted(steps, key=lambda step: (step.at is None, step.at or 0))


def _heading(
    life: Life, reporting: Collection[str], reference: str | None, priority: str | None, rate: str | None
) -> Iterator[str]:
    message = life.message
    if message is None:
        erased = any(decision.verb == Action.ERASE for decision in life.decisions)
        yield f"message {life.told_as}: {ERASED if erased else PRUNED if life.tombstone else NEVER_TAKEN}"
        return
    may_follow = message.state is State.SENT and message.lane in reporting
    yield f"message {life.told_as}: {_state(message)}{RECEIPT_MAY_FOLLOW if may_follow else ''}"
    yield ""
    if message.settings_id is None:
        yield "  its queue element was malformed: it has no settings, customer or variables"
        return
    known = f", reference {reference}" if reference is not None else ""
    ruled = f", priority {priority}" if priority is not None else ""
    yield f"  settings   {message.settings_id}{known}{ruled}"
    yield f"  customer   {message.customer_id}"
    yield f"  variables  {EMPTIED_TEXT if message.variables is None else _variables(message.variables)}"
    if message.state not in (State.SENT, State.DELIVERED) and message.lane is not None:
        limited = f", rate {rate}" if rate is not None else ""
        yield f"  channel    {message.lane}, tries so far: {message.tries}{limited}"
    if message.worker is not None:
        yield f"  worker     {message.worker}"
    for each in message.spent:
        yield f"  given up   {each.provider}: {each.reason}"
    if message.sent_in_part:
        yield "  sent       to some of the customer's devices; it is repeated for the others"
    if message.doubt:
        then = "never settled" if message.state is State.FAILED else "any repeat uses this key"
        yield f"  in doubt   {message.key}: {then}"


def _state(message: MessageRecord) -> str:
    if message.state is State.WAITING and message.pause is not None:
        return PAUSED_TEXT
    if message.state is State.WAITING and message.waits_for is not None:
        until = "its expiry" if _waits_for_a_time(message.waits_for) else "it is due"
        return f"waiting for {awaited(message.waits_for)}, or until {until}"
    return STATES[message.state]


def _waits_for_a_time(waits_for: str | None) -> str | None:
    """What happens when a message is due that waits for nothing but a time; None: it waits for something."""
    return _AT_ITS_TIME.get((waits_for or "").partition(" ")[0])


def _variables(variables: Mapping[str, str | None]) -> str:
    return ", ".join(_variable(name, value) for name, value in variables.items()) or "none"


def _variable(name: str, value: str | None) -> str:
    return name if value is None else f"{name} = {json.dumps(value, ensure_ascii=False)}"


def _intake(life: Life) -> Iterator[Step]:
    if life.message is not None:
        yield Step(life.message.taken_at, "taken from the queue")
    for bad in life.malformed:
        again = (f"given {bad.times} times, last at {moment(bad.last_at)}",) if bad.times > 1 else ()
        raw = (f"raw element: {bad.raw}",) if bad.raw is not None else ()
        yield Step(bad.first_at, f"a malformed element with this id was set aside: {bad.reason}", again + raw)


class _Try(NamedTuple):
    """A try, numbered among all of the message, with its outcomes: a second one settled the first.

    `repeat` is its number under its key.
    """

    place: int
    repeat: int
    outcomes: Sequence[AttemptRecord]


def _tries(life: Life) -> Iterator[_Try]:
    same_try = groupby(life.attempts, key=lambda attempt: (attempt.stay, attempt.number))
    under_key: Counter[str] = Counter()
    for place, (_, records) in enumerate(same_try, 1):
        outcomes = tuple(records)
        under_key[outcomes[0].key] += 1
        yield _Try(place, under_key[outcomes[0].key], outcomes)


def _attempt(attempt: _Try) -> Iterator[Step]:
    first = attempt.outcomes[0]
    name = f"attempt {attempt.place} on {first.provider}"
    again = f", try {attempt.repeat} under it" if attempt.repeat > 1 else ""
    yield Step(first.started_at, f"{name}: begins", (f"key {first.key}{again}",))
    for outcome in attempt.outcomes:
        yield _outcome(name, outcome)


def _outcome(name: str, attempt: AttemptRecord) -> Step:
    if attempt.ended_at is None or attempt.verdict is None:
        return Step(None, f"{name}: no outcome yet")
    verdict = VERDICT_TEXTS.get(attempt.verdict, attempt.verdict)
    reason = f": {attempt.reason}" if attempt.reason else ""
    took = f"took {length(attempt.ended_at - attempt.started_at)}"
    provider = (f"the provider's id {attempt.provider_id}",) if attempt.provider_id is not None else ()
    words = (f"the provider's words: {attempt.words}",) if attempt.words is not None else ()
    return Step(attempt.ended_at, f"{name}: {verdict}{reason}", (took, *provider, *words))


def _receipt(receipt: ReceiptRecord) -> Step:
    what = "delivered" if receipt.delivered else "not delivered"
    # A report without a time of its own gets the time of its arrival.
    has_time = receipt.reported_at != receipt.received_at
    by_its_clock = (f"reported as of {moment(receipt.reported_at)}",) if has_time else ()
    return Step(
        receipt.received_at,
        f"receipt from {receipt.provider}: {what} ({receipt.status})",
        (f"the provider's id {receipt.provider_id}", *by_its_clock),
    )


def _decision(decision: DecisionRecord) -> Step:
    what = "" if decision.kind == "message" else f" {decision.kind} {decision.key}"
    on_behalf = f", on behalf of {decision.caller}, as claimed" if decision.caller is not None else ""
    who = (f"by the user {decision.user}{on_behalf}",) if decision.user is not None else ()
    why = (f"reason: {decision.reason}",) if decision.reason is not None else ()
    return Step(decision.at, f"operator's order: {decision.verb}{what}", who + why)


def _first_events(life: Life) -> Iterator[EventRecord]:
    shown = set(life.tombstone or ())
    for event in life.events:
        if event.body not in shown:
            shown.add(event.body)
            yield event


def _repeats(life: Life) -> Iterator[Step]:
    first = set(_first_events(life))
    for event in life.events:
        if event not in first:
            again = f"event {event.status} reported again, since the queue delivered the message again"
            yield Step(event.settled_at, f"{again}: {_settled(event)}")


def _event(event: EventRecord) -> Iterator[Step]:
    body = json.loads(event.body)
    facts = _event_facts(body)
    by = () if event.worker is None else (f"worker: {event.worker}",)
    yield Step(parse_instant(body["timestamp"]), f"event {event.status}: to be reported", facts + by)
    yield Step(event.settled_at, f"event {event.status}: {_settled(event)}")


def _settled(event: EventRecord) -> str:
    if event.settled_at is None:
        return "not yet accepted by the service"
    return "accepted by the service" if event.refused is None else f"refused by the service: {event.refused}"


def _event_facts(body: Mapping[str, Any]) -> tuple[str, ...]:
    usual = ("timestamp", "messageId", "status")
    return tuple(f"{field}: {value}" for field, value in body.items() if field not in usual)


def _remembered(tombstone: Tombstone) -> Iterator[Step]:
    for text in dict.fromkeys(body for body in tombstone if body is not None):
        body = json.loads(text)
        what = f"event {body['status']}: accepted by the service"
        yield Step(parse_instant(body["timestamp"]), what, _event_facts(body))


def _next_steps(message: MessageRecord, due: DueTime | None) -> Iterator[Step]:
    if message.confirm_within is not None:
        left = length(int(max(message.confirm_within, 0.0) * SECOND))
        yield Step(None, f"goes to the next channel unless a delivery is reported within {left} of listening")
    if message.state is State.WAITING and message.due_at is not None:
        if message.pause is not None:
            kind, key = message.pause.kind, message.pause.key
            yield Step(None, f"paused: {message.pause}", (f"to have it sent: deliveryd resume {kind} {key}",))
            if message.due_at < NEVER:
                yield Step(message.due_at, "expires then, or is examined again")
            return
        if (what := _waits_for_a_time(message.waits_for)) is not None:
            found = due or DueTime(f"{what} then, or it expires", ())
            yield Step(message.due_at, found.what, found.facts)
            return
        where = f"continues with {message.lane}" if message.lane is not None else "continues"
        if message.waits_for is not None:
            what = f"waits for {awaited(message.waits_for)}, until due at the latest"
            yield Step(None, what, _turn_facts(message.turn))
        if message.due_at == AT_ONCE:
            yield Step(None, f"due: {where} as soon as there is capacity")
        else:
            yield Step(message.due_at, f"due: {where} then, or as soon as there is capacity")


def _turn_facts(turn: Turn | None) -> tuple[str, ...]:
    if turn is None:
        return ()
    return (
        f"messages of its settings id that are ahead: {_counted_up(turn.ahead)}",
        f"other settings ids that wait there and take turns with it: {_counted_up(turn.others)}",
    )


def _counted_up(count: int) -> str:
    return f"{count} or more" if count >= MOST_COUNTED else str(count)


def _lines(step: Step, begin: int) -> Iterator[str]:
    when = moment(step.at) if step.at is not None else ""
    after = f"+{length(step.at - begin)}" if step.at is not None else ""
    yield f"{when:24} {after:>12}  {step.what}"
    for fact in step.facts:
        yield f"{'':39}{fact}"


def life_data(life: Life) -> Mapping[str, object]:
    """Return the history as JSON; instants as in events."""
    message = life.message
    return {
        "id": life.told_as,
        "state": message.state.name.lower() if message else "pruned" if life.tombstone else "malformed",
        "message": _message_json(message) if message else None,
        "attempts": [_written(attempt._asdict()) for attempt in life.attempts],
        "events": [_event_json(event) for event in life.events],
        "receipts": [_written(receipt._asdict()) for receipt in life.receipts],
        "malformed": [_written(bad._asdict()) for bad in life.malformed],
        "decisions": [
            _written({"decided_at": each.at} | {k: v for k, v in each._asdict().items() if k != "at"})
            for each in life.decisions
        ],
        "kept": [json.loads(body) for body in life.tombstone or () if body is not None],
    }


def _message_json(message: MessageRecord) -> Mapping[str, object]:
    spent = [_written(each._asdict()) for each in message.spent]
    pause = None if message.pause is None else pause_data(message.pause)
    state = message.state.name.lower()
    due_at = message.due_at or None  # none where it is due at once
    return _written(message._replace(due_at=due_at)._asdict()) | {
        "state": state,
        "spent": spent,
        "pause": pause,
        "turn": None if message.turn is None else message.turn._asdict(),
    }


def _event_json(event: EventRecord) -> Mapping[str, object]:
    return _written(event._asdict()) | {"body": json.loads(event.body)}


def _written(record: Mapping[str, object]) -> dict[str, object]:
    written = with_instants(record)
    provider = written.get("provider")
    return {"channel": channel_of(provider), **written} if isinstance(provider, str) else written
