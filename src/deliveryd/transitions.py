"""Every step of a message is made here: from which state, by which cause, to which state, with which events.

Pure functions, one for each cause that the line or an operator has; for what the journal does in bulk or by
receipts, the two states that its statements take. `states.py` holds the table behind them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from deliveryd.model import (
    AT_ONCE,
    NEVER,
    Claim,
    Confirmation,
    Content,
    Entry,
    Malformed,
    Outcome,
    Receipt,
    ReceiptStep,
    StatusEvent,
    StopChange,
    Transition,
    channel_of,
    format_duration,
    format_instant,
)
from deliveryd.states import BEGINNINGS, Cause, State, edge

BY_OPERATOR = "settled by an operator"
BY_LOOKUP = "settled by asking the provider, which has it"
BY_RECEIPT = "settled by the provider's receipt"
WORKER_ENDED = "the worker ended before the outcome was known"
CHANGED = (
    "not repeated: rendered again, its content differs; settle it, or let it begin again (resend --new-key)"
)
"""Why a message in doubt is held whose content the worker had no time to keep."""

_UNRENDERED = (
    "not repeated: it can't be rendered again ({}); settle it or let it begin again (resend --new-key)"
)

HOLDS = 'not repeated: on_in_doubt was set to "hold" since its latest try'
"""Why a message in doubt is held that waited for its repeat."""

REPEAT_ORDERED = "an operator ordered its repeat"
"""Begins the reason of the latest try in doubt, which is repeated then whatever `on_in_doubt` is."""

UNREADABLE_TWICE = "; held, since its repeat brought no answer that can be read either"
"""Why a message in doubt is held whatever `on_in_doubt` is; ends the reason of its last try."""

_UNFIT = (
    "not repeated: what is kept of it doesn't fit the configuration any more ({}); change that back, settle"
    " it or let it begin again (resend --new-key)"
)

_WITHHELD = "not repeated: {}; settle it, or change [safety], after which it is repeated"

NOT_OUTLASTED = "not sent: the worker's lease of the journal could have ended before the attempt"
"""Why a message waits that had an intent: another worker could have adopted and repeated it meanwhile."""

# What the journal does in bulk: its statements take both states from here.

TAKEN = BEGINNINGS[Cause.QUEUED]
MALFORMED = BEGINNINGS[Cause.MALFORMED]
DEQUEUED_ACCEPTED = edge(State.TAKEN, Cause.DEQUEUED_ACCEPTED)
DEQUEUED_REFUSED = edge(State.TAKEN, Cause.DEQUEUED_REFUSED)
REOPENED = edge(State.SET_ASIDE, Cause.DEQUEUED_ACCEPTED)
DUE = edge(State.WAITING, Cause.DUE)
RUN_INTERRUPTED = edge(State.READY, Cause.INTERRUPTED)
CHANNEL_REMOVED = edge(State.WAITING, Cause.CHANNEL_REMOVED)
INTENT = edge(State.READY, Cause.INTENT)
ACCEPTED = edge(State.SENDING, Cause.ACCEPTED)
UNCONFIRMED = edge(State.SENT, Cause.UNCONFIRMED)
STAYS_SENT = edge(State.READY, Cause.STAYS_SENT)

_FAILED_NEXT = edge(State.SENT, Cause.RECEIPT_FAILED_NEXT)
_DEFERRED = edge(State.READY, Cause.DEFERRED)
_PAUSED = edge(State.READY, Cause.PAUSED)
_UNDELIVERABLE = edge(State.READY, Cause.UNDELIVERABLE)
_HELD_BEFORE_A_TRY = edge(State.READY, Cause.HELD)
_HELD = edge(State.SENDING, Cause.HELD)
_IN_PART = edge(State.SENDING, Cause.SENT_IN_PART)
_RETRY = edge(State.SENDING, Cause.RETRY)
_GIVEN_UP = edge(State.SENDING, Cause.GIVEN_UP)
_ORDERED_RESEND = edge(State.IN_DOUBT, Cause.ORDERED_RESEND)
_ORDERED_SENT = edge(State.IN_DOUBT, Cause.ORDERED_SENT)
_ORDERED_FAILED = edge(State.IN_DOUBT, Cause.ORDERED_FAILED)
_ORDERED_RETRY = edge(State.SET_ASIDE, Cause.ORDERED_RETRY)
_ORDERED_ANEW = edge(State.FAILED, Cause.ORDERED_ANEW)


# The beginning


def dequeued(ids: Iterable[int], at: int) -> list[StatusEvent]:
    """The first event of each new message."""
    return [StatusEvent(id_, "dequeued", at) for id_ in ids]


def malformed(bad: Malformed, at: int) -> list[StatusEvent]:
    """The events of a malformed element that has an id: the message has failed with its beginning."""
    number = bad.number
    if number is None:
        return []
    told_as = None if number == bad.id else bad.id
    events = StatusEvent(number, "dequeued", at), _error(number, at, f"malformed message: {bad.reason}")
    return [event._replace(told_as=told_as) for event in events]


# Before an attempt


def undeliverable(entry: Entry, at: int, details: str) -> Transition:
    """Nothing can be sent; `details` name every reason. It stays sent if no later channel was tried."""
    if entry.sent_by is not None and not entry.failed_since_sent:
        return _stays_sent(entry, State.READY, at, Outcome("accepted", None, details))
    return _failed(entry, _UNDELIVERABLE, at, details)


def deferred(entry: Entry, at: int, due_at: int, waits_for: str | None) -> Transition:
    """Wait until `due_at`, or until what it waits for wakes it."""
    return Transition(entry, *_DEFERRED, at, due_at, waits_for=waits_for)


def parked(entry: Entry, at: int, expires_at: int | None, waits_for: str) -> Transition:
    """Wait until the pause ends, or until the message expires."""
    due_at = NEVER if expires_at is None else min(expires_at + 1, NEVER)
    return Transition(entry, *_PAUSED, at, due_at, waits_for=waits_for)


def expired(entry: Entry, before: State, at: int, expires_at: int) -> Transition:
    """The time ran out: before an intent, or between the intent and the first byte.

    A message that was sent before stays so; after an intent it gives up the channel first.
    """
    outcome = Outcome("expired") if before is State.SENDING else None
    details = entry.ending(expiry_details(expires_at))
    if entry.sent_by is not None and not entry.is_sent_in_part:
        if outcome is not None:
            return given_up(entry, at, outcome, expiry_details(expires_at))
        return _stays_sent(entry, State.READY, at, Outcome("accepted", None, details))
    return _failed(entry, edge(before, Cause.EXPIRED), at, details, outcome)


def expiry_details(expires_at: int) -> str:
    """The details of an `error` event for a message whose time is over (design 5)."""
    return f"expired at {format_instant(expires_at)}"


def unfit(why: str) -> str:
    """The reason why a message is held whose kept content no request can be made of."""
    return _UNFIT.format(why)


def unrendered(why: str) -> str:
    """The reason why a message is held that is known by its digest alone and has no content now."""
    return _UNRENDERED.format(why)


def withheld(why: str) -> str:
    """The reason why a message is held whose customer this installation doesn't send to any more."""
    return _WITHHELD.format(why)


def not_repeated(entry: Entry, before: State, at: int, reason: str) -> Transition:
    """Hold a message that may have arrived, and that can't be repeated as it was; no try is counted."""
    if entry.is_sent_in_part:
        return rest_ends(entry, before, at, Outcome("in_doubt", None, reason))
    return Transition(entry, *edge(before, Cause.HELD), at, outcome=Outcome("in_doubt", None, reason))


def held_without_provider(entry: Entry, before: State, at: int) -> Transition:
    """Hold a message in doubt whose provider was removed from the configuration."""
    if entry.is_sent_in_part and before is State.READY:
        return rest_ends(entry, before, at, Outcome("in_doubt", None, "its provider was removed"))
    return Transition(entry, *(CHANNEL_REMOVED if before is State.WAITING else _HELD_BEFORE_A_TRY), at)


def released(entry: Entry, before: State, at: int) -> Transition:
    """A message that isn't in doubt, and waits or is held at a provider, is due at any.

    Its stay goes on if it comes back; from one that is removed or disabled the router has it leave.
    """
    return Transition(entry.released(), *edge(before, Cause.RELEASED), at, AT_ONCE)


def intent(entry: Entry, at: int, intermediate: Collection[str], claim: Claim | None = None) -> Transition:
    """The try that `entry` describes is about to be made; one for the rest of the devices has no event."""
    is_told = "sending" in intermediate and not entry.is_sent_in_part
    events = (StatusEvent(entry.id, "sending", at),) if is_told else ()
    return Transition(entry, INTENT.before, INTENT.after, at, None, None, events, None, None, (), claim)


# After an attempt; `entry` is as it was after its intent


def accepted(
    entry: Entry,
    at: int,
    provider_id: str | None,
    intermediate: Collection[str],
    confirmation: Confirmation | None = None,
    *,
    reason: str | None = None,
) -> Transition:
    """The provider has the message; `reason` lists its devices, if there are several."""
    events = (StatusEvent(entry.id, "sent", at),) if entry.sent_by is None else _sent(entry, at)
    if "accepted" in intermediate and events:
        events = (StatusEvent(entry.id, "accepted", at), *events)
    outcome = Outcome("accepted", provider_id, reason)
    return Transition(
        entry.taken(), ACCEPTED.before, ACCEPTED.after, at, None, outcome, events, None, confirmation
    )


def sent_in_part(taken: Transition, rest: Content, due_at: int) -> Transition:
    """The step of a message that some devices have, and that is repeated for the `rest`."""
    entry = taken.entry.sent_in_part(rest)
    return taken._replace(entry=entry, after=_IN_PART.after, due_at=due_at, confirmation=None)


def rest_ends(entry: Entry, before: State, at: int, outcome: Outcome) -> Transition:
    """A message that some devices have stays sent, whatever came of the others, and nothing is repeated."""
    return _stays_sent(entry.settled(), before, at, outcome)


def found_taken(
    entry: Entry,
    at: int,
    provider_id: str | None,
    intermediate: Collection[str],
    confirmation: Confirmation | None = None,
) -> Transition:
    """Asked before a repeat, the provider has the message."""
    step = accepted(entry, at, provider_id, intermediate, confirmation)
    edge_taken = edge(State.SENDING, Cause.FOUND)
    outcome = Outcome("accepted", provider_id, BY_LOOKUP)
    return step._replace(before=edge_taken.before, after=edge_taken.after, outcome=outcome)


def retry_later(entry: Entry, at: int, due_at: int, outcome: Outcome, waits_for: str | None) -> Transition:
    """The provider doesn't have the message: try it again."""
    return Transition(entry, *_RETRY, at, due_at, outcome, waits_for=waits_for)


def unsent(entry: Entry, at: int, due_at: int, reason: str) -> Transition:
    """Nothing was sent after the intent, which shows nothing of the provider and uses up no try."""
    return retry_later(entry, at, due_at, Outcome("try_again", None, reason), None)


def moved_on(entry: Entry, at: int, outcome: Outcome) -> Transition:
    """The provider doesn't have the message and keeps failing; another one of the channel takes it."""
    return Transition(entry.left(outcome.reason or ""), *_GIVEN_UP, at, outcome=outcome)


def given_up(entry: Entry, at: int, outcome: Outcome, reason: str) -> Transition:
    """This provider failed for good; the next one, or the next channel, may take the message."""
    return Transition(entry.given_up(reason), *_GIVEN_UP, at, outcome=outcome)


def off_channel(entry: Entry, at: int, outcome: Outcome, reason: str) -> Transition:
    """This channel failed for good; the next one of the order may take the message."""
    return Transition(entry.off_channel(reason), *_GIVEN_UP, at, outcome=outcome)


def with_stops(transition: Transition, stops: Iterable[StopChange]) -> Transition:
    """The step after a try by which it shows that recipients can't be reached any more."""
    return transition._replace(stops=tuple(stops))


def exhausted(entry: Entry, before: State, at: int, details: str, outcome: Outcome | None) -> Transition:
    """The tries are used up while one of them is in doubt, so that no other provider may take the message."""
    return _failed(entry, edge(before, Cause.EXHAUSTED), at, entry.ending(details), outcome)


def held_in_doubt(entry: Entry, at: int, outcome: Outcome) -> Transition:
    """The outcome is unknown, and an operator or a receipt has to settle it."""
    if entry.is_sent_in_part:
        return rest_ends(entry, State.SENDING, at, outcome)
    return Transition(entry._replace(doubt=True), *_HELD, at, outcome=outcome)


def repeated(entry: Entry, before: State, at: int, due_at: int, outcome: Outcome | None) -> Transition:
    """The outcome is unknown: repeat the try under the same key, with the same content."""
    return Transition(entry, *edge(before, Cause.REPEATED), at, due_at, outcome)


def no_later_than(transition: Transition, instant: int) -> Transition:
    """The step; a message that waits is due at that instant at the latest."""
    if transition.due_at is None or transition.due_at <= instant:
        return transition
    return transition._replace(due_at=instant)


# Operators' orders


def ordered_resend(entry: Entry, at: int) -> Transition:
    """Repeat a held message at once; with a new key if it was begun again.

    One without a try in doubt, which its provider only put off, gets its content of now.
    """
    entry = entry if entry.doubt else entry._replace(content=None, digest=None)
    return Transition(entry, *_ORDERED_RESEND, at, AT_ONCE)


def ordered_sent(entry: Entry, at: int) -> Transition:
    """An operator confirmed that the message arrived."""
    if entry.is_sent_in_part:
        return rest_ends(entry, State.IN_DOUBT, at, Outcome("in_doubt", None, BY_OPERATOR))
    outcome, sent = Outcome("accepted", None, BY_OPERATOR), StatusEvent(entry.id, "sent", at)
    return Transition(entry.settled(), *_ORDERED_SENT, at, outcome=outcome, events=(sent,))


def ordered_failed(entry: Entry, at: int) -> Transition:
    """An operator confirmed that the message didn't arrive."""
    reason = f"{entry.provider}: the outcome was unknown; {BY_OPERATOR} as failed"
    settled = entry.settled()
    return _failed(settled, _ORDERED_FAILED, at, settled.ending(reason))


def ordered_retry(entry: Entry, at: int) -> Transition:
    """Report the `dequeued` of a message once more that was set aside."""
    return Transition(entry, *_ORDERED_RETRY, at)


def ordered_anew(entry: Entry, at: int) -> Transition:
    """A message that failed begins again, at once: every channel may take it, under new keys.

    Its expiry is checked before the attempt, as always. The service receives the outcome.
    """
    return Transition(entry.anew()._replace(spent=(), sent_by=None), *_ORDERED_ANEW, at, AT_ONCE)


# Receipts that didn't come, and receipts


def unconfirmed(entry: Entry, at: int, within: float) -> Transition:
    """The message wasn't confirmed within this many seconds: the next channel may take it."""
    reason = f"not confirmed within {format_duration(within)}"
    onwards = entry.off_channel(reason)._replace(sent_by=entry.provider)
    return Transition(onwards, *UNCONFIRMED, at, AT_ONCE)


def failed_to_next(entry: Entry, receipt: Receipt) -> Transition:
    """A provider reports that it failed: the next channel may take the message."""
    at = receipt.received_at
    return Transition(entry.off_channel(_reported(receipt)), *_FAILED_NEXT, at, AT_ONCE)


def _stays_sent(entry: Entry, before: State, at: int, outcome: Outcome) -> Transition:
    """No later channel or device takes a message that was sent; nothing is reported to the service."""
    return Transition(entry, *edge(before, Cause.STAYS_SENT), at, outcome=outcome)


def proved_sent(message_id: int, before: State, at: int) -> ReceiptStep:
    """A receipt proves that the provider has the message."""
    step = edge(before, Cause.RECEIPT_PROVES)
    return ReceiptStep(*step, StatusEvent(message_id, "sent", at))


def reported(message_id: int, before: State, receipt: Receipt, *earlier: str) -> ReceiptStep | None:
    """What a receipt reports about a message that was sent; None: nothing new.

    `earlier` is why other providers failed before: an error names every one that was tried.
    """
    cause = Cause.RECEIPT_DELIVERED if receipt.delivered else Cause.RECEIPT_FAILED
    if before is State.DELIVERED or (before is State.FAILED and not receipt.delivered):
        return None
    at = receipt.received_at
    if receipt.delivered:
        channel = channel_of(receipt.provider)
        event = StatusEvent(message_id, "delivered", at, channel, receipt.reported_at)
    else:
        event = _error(message_id, at, "; ".join((*earlier, f"{receipt.provider}: {_reported(receipt)}")))
    return ReceiptStep(*edge(before, cause), event)


def _reported(receipt: Receipt) -> str:
    return f"the provider reported {receipt.status}"


def progressed(message_id: int, state: State, status: str, at: int) -> StatusEvent | None:
    """What a provider's report on the way reports to the service, only while the message is sent."""
    return StatusEvent(message_id, status, at) if state is State.SENT else None


# Common to all


def _failed(
    entry: Entry, step: tuple[State, State], at: int, details: str, outcome: Outcome | None = None
) -> Transition:
    """Failed with an `error` event: the one end that the line, its channels and operators share.

    A message that some of the customer's devices have stays sent.
    """
    if entry.is_sent_in_part:
        return rest_ends(entry, step[0], at, outcome or Outcome("failed", None, details))
    return Transition(entry.ended(), *step, at, outcome=outcome, events=(_error(entry.id, at, details),))


def _sent(entry: Entry, at: int) -> tuple[StatusEvent, ...]:
    """The event `sent`, unless it was reported when the first of several devices accepted the message."""
    return () if entry.is_sent_in_part else (StatusEvent(entry.id, "sent", at),)


def _error(message_id: int, at: int, details: str) -> StatusEvent:
    return StatusEvent(message_id, "error", at, details=details)
