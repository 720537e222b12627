"""The one table of message states and the steps between them.

Two rules: a message takes only steps that stand in `TRANSITIONS`; an illegal step raises and changes nothing.
The numbers are what the journal stores, so they never change their meaning.
"""

from __future__ import annotations

from enum import IntEnum

from deliveryd.errors import IllegalTransition


class State(IntEnum):
    """Where a message is in its life."""

    TAKEN = 1  # in the journal; the service hasn't accepted `dequeued` yet
    READY = 2  # in the line's hands: settings, expiry, render
    WAITING = 3  # nothing to do before its due time
    SENDING = 4  # an intent is committed, its outcome isn't
    IN_DOUBT = 5  # an attempt left and nobody knows what became of it
    SENT = 6  # a channel accepted it
    DELIVERED = 7  # the provider confirmed it
    FAILED = 8  # it ended with an `error` event
    SET_ASIDE = 9  # the service refused its `dequeued`: it may not be sent until it is accepted


TRANSITIONS: dict[State, frozenset[State]] = {
    State.TAKEN: frozenset({State.READY, State.SET_ASIDE}),
    State.READY: frozenset({State.WAITING, State.SENDING, State.IN_DOUBT, State.SENT, State.FAILED}),
    State.WAITING: frozenset({State.READY, State.IN_DOUBT, State.SENT}),
    State.SENDING: frozenset({State.SENT, State.WAITING, State.IN_DOUBT, State.FAILED, State.READY}),
    State.IN_DOUBT: frozenset({State.READY, State.WAITING, State.SENT, State.FAILED}),
    State.SENT: frozenset({State.DELIVERED, State.FAILED}),
    State.DELIVERED: frozenset(),
    State.FAILED: frozenset({State.SENT, State.DELIVERED}),
    State.SET_ASIDE: frozenset({State.TAKEN, State.READY}),
}
"""From each state, the states that a message may go to."""

ENDED = frozenset({State.SENT, State.DELIVERED, State.FAILED, State.SET_ASIDE})
"""States in which the line has nothing more to do for a message, receipts aside."""


def check_transition(before: State, after: State) -> State:
    """Return `after` when the table has the step from `before`; raises IllegalTransition when it hasn't."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(f"a message can't go from {before.name} to {after.name}")
    return after
