"""The one table of a message's states: from each state, which cause leads to which state.

Two rules: a message takes only the steps of `TRANSITIONS`; an illegal step raises and changes nothing.
The journal stores the numbers of the states, so they keep their meaning.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from deliveryd.errors import IllegalTransition


class State(IntEnum):
    """Where a message is in its life."""

    TAKEN = 1  # in the journal; the service hasn't accepted `dequeued` yet
    READY = 2  # in the line's hands: settings, expiry, render
    WAITING = 3  # nothing to do before its due time
    SENDING = 4  # an intent is committed, its outcome isn't
    IN_DOUBT = 5  # an attempt left and its outcome is unknown
    SENT = 6  # a channel accepted it
    DELIVERED = 7  # the provider confirmed it
    FAILED = 8  # it ended with an `error` event
    SET_ASIDE = 9  # the service refused its `dequeued`: it may not be sent until it is accepted


class Cause(Enum):
    """Why a message takes a step."""

    QUEUED = "taken from the queue"
    MALFORMED = "malformed, but with an id"
    DEQUEUED_ACCEPTED = "dequeued accepted"
    DEQUEUED_REFUSED = "dequeued refused"
    DEFERRED = "deferred"  # settings, a customer or room in a dispatcher can't be had now
    PAUSED = "paused"  # by an operator: the message, its settings, or where it would go
    DUE = "due"
    UNDELIVERABLE = "undeliverable"
    EXPIRED = "expired"
    INTENT = "intent"
    ACCEPTED = "accepted"
    FOUND = "found at the provider"  # asked before a repeat, it has the message
    RETRY = "retry"  # the provider doesn't have it, and may take it later
    GIVEN_UP = "channel given up"  # the next channel of the order may take it
    EXHAUSTED = "tries exhausted"
    SENT_IN_PART = "sent in part"  # some of several devices have it; the others are repeated
    REPEATED = "repeated in doubt"  # on_in_doubt = "resend"
    HELD = "held in doubt"  # on_in_doubt = "hold", or its content would differ now
    INTERRUPTED = "worker ended"
    CHANNEL_REMOVED = "channel removed"
    RELEASED = "released"  # another provider may take it: its own is down, paused, disabled or removed
    ORDERED_RESEND = "ordered: resend"
    ORDERED_SENT = "ordered: settle as sent"
    ORDERED_FAILED = "ordered: settle as failed"
    ORDERED_RETRY = "ordered: retry"
    ORDERED_ANEW = "ordered: begin again"
    RECEIPT_PROVES = "receipt proves it sent"
    RECEIPT_DELIVERED = "receipt: delivered"
    RECEIPT_FAILED = "receipt: failed"
    RECEIPT_FAILED_NEXT = "receipt: failed, next channel"  # receipt_failed_then = "next"
    UNCONFIRMED = "not confirmed in time"  # receipt_deadline
    STAYS_SENT = "stays sent"  # it was sent before: to another device, or by a channel that didn't confirm it


BEGINNINGS: dict[Cause, State] = {Cause.QUEUED: State.TAKEN, Cause.MALFORMED: State.FAILED}
"""The state in which the journal records a new message."""

TRANSITIONS: dict[State, dict[Cause, State]] = {
    State.TAKEN: {
        Cause.DEQUEUED_ACCEPTED: State.READY,
        Cause.DEQUEUED_REFUSED: State.SET_ASIDE,
    },
    State.READY: {
        Cause.DEFERRED: State.WAITING,
        Cause.PAUSED: State.WAITING,
        Cause.INTERRUPTED: State.WAITING,
        Cause.INTENT: State.SENDING,
        Cause.HELD: State.IN_DOUBT,
        Cause.RECEIPT_PROVES: State.SENT,
        Cause.STAYS_SENT: State.SENT,
        Cause.UNDELIVERABLE: State.FAILED,
        Cause.EXPIRED: State.FAILED,
    },
    State.WAITING: {
        Cause.DUE: State.READY,
        Cause.RELEASED: State.WAITING,
        Cause.CHANNEL_REMOVED: State.IN_DOUBT,
        Cause.RECEIPT_PROVES: State.SENT,
    },
    State.SENDING: {
        Cause.GIVEN_UP: State.READY,
        Cause.RETRY: State.WAITING,
        Cause.SENT_IN_PART: State.WAITING,
        Cause.REPEATED: State.WAITING,
        Cause.HELD: State.IN_DOUBT,
        Cause.ACCEPTED: State.SENT,
        Cause.FOUND: State.SENT,
        Cause.STAYS_SENT: State.SENT,
        Cause.EXHAUSTED: State.FAILED,
        Cause.EXPIRED: State.FAILED,
    },
    State.IN_DOUBT: {
        Cause.REPEATED: State.WAITING,
        Cause.RELEASED: State.WAITING,
        Cause.ORDERED_RESEND: State.WAITING,
        Cause.ORDERED_SENT: State.SENT,
        Cause.STAYS_SENT: State.SENT,
        Cause.RECEIPT_PROVES: State.SENT,
        Cause.EXHAUSTED: State.FAILED,
        Cause.ORDERED_FAILED: State.FAILED,
    },
    State.SENT: {
        Cause.UNCONFIRMED: State.WAITING,
        Cause.RECEIPT_FAILED_NEXT: State.WAITING,
        Cause.RECEIPT_DELIVERED: State.DELIVERED,
        Cause.RECEIPT_FAILED: State.FAILED,
    },
    State.DELIVERED: {},
    State.FAILED: {
        Cause.ORDERED_ANEW: State.WAITING,
        Cause.RECEIPT_PROVES: State.SENT,
        Cause.RECEIPT_DELIVERED: State.DELIVERED,
    },
    State.SET_ASIDE: {
        Cause.ORDERED_RETRY: State.TAKEN,
        Cause.DEQUEUED_ACCEPTED: State.READY,
    },
}
"""From each state, the causes that move a message, and the state that each leads to."""

ENDED = frozenset({State.SENT, State.DELIVERED, State.FAILED, State.SET_ASIDE})
"""States in which the line has nothing more to do for a message, receipts and their deadlines aside."""

_NEXT = {before: frozenset(causes.values()) for before, causes in TRANSITIONS.items()}


class Edge(NamedTuple):
    """Two states of the table, one cause apart."""

    before: State
    after: State


def edge(before: State, cause: Cause) -> Edge:
    """The step that a cause leads to; raises IllegalTransition when the table has none."""
    try:
        return Edge(before, TRANSITIONS[before][cause])
    except KeyError:
        raise IllegalTransition(f"a message in {before.name} can't take the step {cause.value!r}") from None


def check_transition(before: State, after: State) -> State:
    """Return `after` when the table has a step to it from `before`; raises IllegalTransition otherwise."""
    if after not in _NEXT[before]:
        raise IllegalTransition(f"a message can't go from {before.name} to {after.name}")
    return after
