"""The oracle of `fleet` finds each kind of loss, repeat and gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from deliveryd.sandbox.state import PlannedReceipt, ReceivedMessage, SandboxState
from fleet.oracle import judge

ALL = ("dequeued", "sent", "delivered")


def seen(keys: Sequence[str], statuses: Sequence[str], receipt: int | None = 200) -> SandboxState:
    """What service and provider know of one message that was sent under these keys."""
    state = SandboxState()
    for key in keys:
        accepted = state.accept(
            ReceivedMessage(0, "", "sms", f"id-{key}", 1, "1", key, "+447000000001", {}, {"x-worker": "1"})
        )
        state.record_receipt(PlannedReceipt("sms", accepted.provider_id, "delivered", "", receipt))
    events: Sequence[Mapping[str, object]] = [
        {"messageId": 1, "status": status, "timestamp": f"2026-11-27T10:00:00.{number:06}Z"}
        for number, status in enumerate(statuses)
    ]
    state.record_events([dict(event) for event in events])
    return state


def test_what_is_sent_once_more_under_its_key_is_good() -> None:
    verdict = judge(seen(["k", "k"], ALL), 1)
    assert (verdict.violations, verdict.sent, verdict.repeats) == ({}, 1, 1)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (seen(["k", "j"], ALL), "was sent under 2 keys"),
        (seen(["k"], ["dequeued"]), "was sent, and the service heard ['dequeued']"),
        (seen([], ALL), "is told to be sent, and wasn't"),
        (seen([], []), "its events came as []"),
        (seen(["k"], ["dequeued", "delivered", "sent"]), "its events came as ['dequeued', 'delivered'"),
        (seen(["k"], ["dequeued", "sent"]), "a receipt was answered, and the service heard"),
    ],
)
def test_what_does_not_hold_is_told(state: SandboxState, told: str) -> None:
    violations = judge(state, 1).violations
    assert any(told in text for text in violations[1])


def test_a_receipt_that_nobody_took_confirms_nothing() -> None:
    assert judge(seen(["k"], ["dequeued", "sent"], receipt=503), 1).violations == {}
