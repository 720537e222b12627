"""What becomes of tries whose outcome is unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deliveryd.delivery.policy import DispatchPolicy, DoubtPolicy, RetryPolicy
from deliveryd.model import SECOND, Content, Entry, Rendered, Transition
from deliveryd.runtime.breaker import BreakerPolicy
from deliveryd.states import State

RESENDING = DispatchPolicy(
    1, None, RetryPolicy(9, 1.0, 10.0), BreakerPolicy(3, 1.0, 60.0), resend_in_doubt=True
)
HOLDING = RESENDING._replace(resend_in_doubt=False)
UNREADABLE = "an answer that can't be read"
REPEATED = Entry(7, 1, 1, {}, provider="sms", counted_tries=2, stay_tries=2, doubt=True)


def test_an_unreadable_repeat_stays_held_when_repeats_are_allowed_later() -> None:
    """It was held by the policy as well; the next start has another one, and might send it for ever."""
    held = DoubtPolicy("sms", HOLDING)
    step = held.after_try(REPEATED, UNREADABLE, 0, is_unreadable=True)
    assert (step.after, step.outcome is not None) == (State.IN_DOUBT, True)
    reason = step.outcome.reason if step.outcome is not None else ""
    resending = DoubtPolicy("sms", RESENDING)
    assert resending.after_hold(REPEATED, reason or "", 1) is None


def test_a_first_unreadable_answer_is_repeated_when_repeats_are_allowed_later() -> None:
    """Nobody tried yet whether its repeat brings the same."""
    held = DoubtPolicy("sms", HOLDING)
    step = held.after_try(REPEATED._replace(doubt=False), UNREADABLE, 0, is_unreadable=True)
    reason = step.outcome.reason if step.outcome is not None else ""
    resending = DoubtPolicy("sms", RESENDING)
    again = resending.after_hold(REPEATED, reason or "", 1)
    assert again is not None
    assert again.after is State.WAITING


@pytest.mark.parametrize(
    "step_of",
    [
        lambda policy, entry: policy.after_try(entry, "cut off", SECOND, 3000.0),
        lambda policy, entry: policy.after_hold(entry, "cut off", SECOND),
    ],
    ids=["after a try", "after a hold"],
)
def test_a_repeat_is_due_when_its_message_expires_at_the_latest(
    step_of: Callable[[DoubtPolicy, Entry], Transition],
) -> None:
    """The service hears of the end then, not when the provider would have been asked, or sent, again."""
    policy = DoubtPolicy("sms", RESENDING._replace(lookup_after=3600.0))
    content = Content(Rendered("sms", "en", {"text": "hi"}), {}, expires_at=60 * SECOND)
    step = step_of(policy, REPEATED._replace(content=content))
    assert (step.after, step.due_at) == (State.WAITING, 60 * SECOND + 1)
