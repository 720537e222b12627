"""Steps of messages: the table of states and causes as a whole, who makes steps, and what each one says."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

import deliveryd
from deliveryd import transitions
from deliveryd.errors import IllegalTransition
from deliveryd.model import (
    AT_ONCE,
    NEVER,
    Content,
    Entry,
    Outcome,
    Receipt,
    ReceiptStep,
    Rendered,
    Spent,
    Transition,
    format_instant,
)
from deliveryd.states import BEGINNINGS, Cause, Edge, State, edge

SOURCE = Path(deliveryd.__file__).parent
AT, LATER = 1_800_000_000_000_000, 1_800_000_001_000_000
ENTRY = Entry(
    1, 2, 3, {}, provider="sms", counted_tries=3, stay_tries=3, spent=(Spent("email", "no address"),)
)
SENDING = frozenset({"sending", "accepted"})
UNCONFIRMED = transitions.unconfirmed(ENTRY, AT, 600.0).entry
DOUBTFUL = ENTRY._replace(doubt=True)
REST = Content(Rendered("inApp", "en", {"name": "hello"}), {"tokens": '["b"]'})
TAKEN = transitions.accepted(ENTRY, AT, "p1", SENDING)
IN_PART = transitions.sent_in_part(TAKEN, REST, LATER)
BUSY = Outcome("try_again", None, "busy")

TABLE: Mapping[str, Mapping[str, str]] = {
    "TAKEN": {"DEQUEUED_ACCEPTED": "READY", "DEQUEUED_REFUSED": "SET_ASIDE"},
    "READY": {
        "DEFERRED": "WAITING",
        "PAUSED": "WAITING",
        "INTERRUPTED": "WAITING",
        "INTENT": "SENDING",
        "HELD": "IN_DOUBT",
        "RECEIPT_PROVES": "SENT",
        "STAYS_SENT": "SENT",
        "UNDELIVERABLE": "FAILED",
        "EXPIRED": "FAILED",
    },
    "WAITING": {
        "DUE": "READY",
        "RELEASED": "WAITING",
        "CHANNEL_REMOVED": "IN_DOUBT",
        "RECEIPT_PROVES": "SENT",
    },
    "SENDING": {
        "GIVEN_UP": "READY",
        "RETRY": "WAITING",
        "SENT_IN_PART": "WAITING",
        "REPEATED": "WAITING",
        "HELD": "IN_DOUBT",
        "ACCEPTED": "SENT",
        "FOUND": "SENT",
        "STAYS_SENT": "SENT",
        "EXHAUSTED": "FAILED",
        "EXPIRED": "FAILED",
    },
    "IN_DOUBT": {
        "REPEATED": "WAITING",
        "RELEASED": "WAITING",
        "ORDERED_RESEND": "WAITING",
        "ORDERED_SENT": "SENT",
        "STAYS_SENT": "SENT",
        "RECEIPT_PROVES": "SENT",
        "EXHAUSTED": "FAILED",
        "ORDERED_FAILED": "FAILED",
    },
    "SENT": {
        "UNCONFIRMED": "WAITING",
        "RECEIPT_FAILED_NEXT": "WAITING",
        "RECEIPT_DELIVERED": "DELIVERED",
        "RECEIPT_FAILED": "FAILED",
    },
    "DELIVERED": {},
    "FAILED": {"ORDERED_ANEW": "WAITING", "RECEIPT_PROVES": "SENT", "RECEIPT_DELIVERED": "DELIVERED"},
    "SET_ASIDE": {"ORDERED_RETRY": "TAKEN", "DEQUEUED_ACCEPTED": "READY"},
}
"""Written out once more, so that a change of the table is a change in two places."""


def receipt(*, delivered: bool) -> Receipt:
    return Receipt("sms", "p1", delivered, "delivered" if delivered else "rejected", AT, LATER)


def proved(before: State) -> ReceiptStep:
    return transitions.proved_sent(1, before, AT)


MADE: Mapping[tuple[State, Cause], Transition | ReceiptStep | Edge | None] = {
    (State.TAKEN, Cause.DEQUEUED_ACCEPTED): transitions.DEQUEUED_ACCEPTED,
    (State.TAKEN, Cause.DEQUEUED_REFUSED): transitions.DEQUEUED_REFUSED,
    (State.READY, Cause.DEFERRED): transitions.deferred(ENTRY, AT, LATER, "settings 2"),
    (State.READY, Cause.PAUSED): transitions.parked(ENTRY, AT, LATER, "paused settings 2"),
    (State.READY, Cause.INTERRUPTED): transitions.RUN_INTERRUPTED,
    (State.READY, Cause.INTENT): transitions.intent(ENTRY, AT, SENDING),
    (State.READY, Cause.HELD): transitions.not_repeated(DOUBTFUL, State.READY, AT, transitions.CHANGED),
    (State.READY, Cause.RECEIPT_PROVES): proved(State.READY),
    (State.READY, Cause.STAYS_SENT): transitions.undeliverable(UNCONFIRMED, AT, "no other channel"),
    (State.READY, Cause.UNDELIVERABLE): transitions.undeliverable(ENTRY, AT, "no content"),
    (State.READY, Cause.EXPIRED): transitions.expired(ENTRY, State.READY, AT, AT),
    (State.WAITING, Cause.DUE): transitions.DUE,
    (State.WAITING, Cause.RELEASED): transitions.released(ENTRY, State.WAITING, AT),
    (State.WAITING, Cause.CHANNEL_REMOVED): transitions.CHANNEL_REMOVED,
    (State.WAITING, Cause.RECEIPT_PROVES): proved(State.WAITING),
    (State.SENDING, Cause.GIVEN_UP): transitions.given_up(ENTRY, AT, BUSY, "busy"),
    (State.SENDING, Cause.RETRY): transitions.retry_later(ENTRY, AT, LATER, BUSY, None),
    (State.SENDING, Cause.REPEATED): transitions.repeated(DOUBTFUL, State.SENDING, AT, LATER, BUSY),
    (State.SENDING, Cause.HELD): transitions.held_in_doubt(ENTRY, AT, Outcome("in_doubt", None, "cut off")),
    (State.SENDING, Cause.ACCEPTED): transitions.accepted(ENTRY, AT, "p1", SENDING),
    (State.SENDING, Cause.FOUND): transitions.found_taken(ENTRY, AT, "p1", SENDING),
    (State.SENDING, Cause.EXHAUSTED): transitions.exhausted(DOUBTFUL, State.SENDING, AT, "sms: x", BUSY),
    (State.SENDING, Cause.SENT_IN_PART): IN_PART,
    (State.SENDING, Cause.STAYS_SENT): transitions.exhausted(
        IN_PART.entry, State.SENDING, AT, "sms: x", BUSY
    ),
    (State.SENDING, Cause.EXPIRED): transitions.expired(ENTRY, State.SENDING, AT, AT),
    (State.IN_DOUBT, Cause.REPEATED): transitions.repeated(DOUBTFUL, State.IN_DOUBT, AT, LATER, None),
    (State.IN_DOUBT, Cause.RELEASED): transitions.released(ENTRY, State.IN_DOUBT, AT),
    (State.IN_DOUBT, Cause.ORDERED_RESEND): transitions.ordered_resend(DOUBTFUL, AT),
    (State.IN_DOUBT, Cause.ORDERED_SENT): transitions.ordered_sent(DOUBTFUL, AT),
    (State.IN_DOUBT, Cause.STAYS_SENT): transitions.ordered_failed(IN_PART.entry, AT),
    (State.IN_DOUBT, Cause.RECEIPT_PROVES): proved(State.IN_DOUBT),
    (State.IN_DOUBT, Cause.EXHAUSTED): transitions.exhausted(DOUBTFUL, State.IN_DOUBT, AT, "sms: x", None),
    (State.IN_DOUBT, Cause.ORDERED_FAILED): transitions.ordered_failed(DOUBTFUL, AT),
    (State.SENT, Cause.UNCONFIRMED): transitions.unconfirmed(ENTRY, AT, 600.0),
    (State.SENT, Cause.RECEIPT_FAILED_NEXT): transitions.failed_to_next(ENTRY, receipt(delivered=False)),
    (State.SENT, Cause.RECEIPT_DELIVERED): transitions.reported(1, State.SENT, receipt(delivered=True)),
    (State.SENT, Cause.RECEIPT_FAILED): transitions.reported(1, State.SENT, receipt(delivered=False)),
    (State.FAILED, Cause.ORDERED_ANEW): transitions.ordered_anew(ENTRY, AT),
    (State.FAILED, Cause.RECEIPT_PROVES): proved(State.FAILED),
    (State.FAILED, Cause.RECEIPT_DELIVERED): transitions.reported(1, State.FAILED, receipt(delivered=True)),
    (State.SET_ASIDE, Cause.ORDERED_RETRY): transitions.ordered_retry(ENTRY, AT),
    (State.SET_ASIDE, Cause.DEQUEUED_ACCEPTED): transitions.REOPENED,
}
"""The step that `transitions.py` makes for each edge of the table."""


@pytest.mark.parametrize(("before", "cause"), list(product(State, Cause)))
def test_each_cause_leads_from_each_state_where_the_table_says_or_nowhere(
    before: State, cause: Cause
) -> None:
    """All pairs; a cause that the state doesn't have raises, and names both."""
    after = TABLE[before.name].get(cause.name)
    if after is not None:
        assert edge(before, cause) == (before, State[after])
    else:
        with pytest.raises(IllegalTransition, match=rf"in {before.name} .*'{re.escape(cause.value)}'"):
            edge(before, cause)


def test_for_each_edge_of_the_table_there_is_one_maker() -> None:
    """No edge is left that nothing leads along, and each maker stays on its own."""
    assert {(before.name, cause.name) for before, cause in MADE} == {
        (before, cause) for before, causes in TABLE.items() for cause in causes
    }
    for (before, cause), step in MADE.items():
        assert step is not None
        assert (step.before, step.after) == edge(before, cause)


def test_a_message_begins_as_taken_or_as_failed() -> None:
    assert BEGINNINGS == {Cause.QUEUED: State.TAKEN, Cause.MALFORMED: State.FAILED}
    assert (transitions.TAKEN, transitions.MALFORMED) == (State.TAKEN, State.FAILED)


def test_what_the_line_ends_as_failed_has_one_error_event_with_all_reasons() -> None:
    """And nothing that could be repeated: neither content nor a due time."""
    for step in MADE.values():
        if isinstance(step, Transition):
            errors = [event for event in step.events if event.status == "error"]
            assert len(errors) == (step.after is State.FAILED)
            if errors:
                assert errors[0].details
                assert (step.entry.content, step.due_at) == (None, None)


def test_what_waits_has_a_due_time_and_nothing_else_has() -> None:
    for step in MADE.values():
        if isinstance(step, Transition):
            assert (step.due_at is not None) == (step.after is State.WAITING)


def test_events_of_steps() -> None:
    """By state: what the service is told with each step that tells it anything."""
    told = {
        key: [event.status for event in step.events]
        for key, step in MADE.items()
        if isinstance(step, Transition) and step.events and step.after is not State.FAILED
    }
    assert told == {
        (State.READY, Cause.INTENT): ["sending"],
        (State.SENDING, Cause.ACCEPTED): ["accepted", "sent"],
        (State.SENDING, Cause.FOUND): ["accepted", "sent"],
        (State.SENDING, Cause.SENT_IN_PART): ["accepted", "sent"],
        (State.IN_DOUBT, Cause.ORDERED_SENT): ["sent"],
    }


def test_a_receipt_that_says_nothing_new_leads_to_no_step() -> None:
    assert transitions.reported(1, State.DELIVERED, receipt(delivered=True)) is None
    assert transitions.reported(1, State.DELIVERED, receipt(delivered=False)) is None
    assert transitions.reported(1, State.FAILED, receipt(delivered=False)) is None


def test_a_due_time_is_brought_forward_to_the_expiry_and_never_put_off() -> None:
    waiting = transitions.retry_later(ENTRY, AT, LATER, BUSY, None)
    assert transitions.no_later_than(waiting, AT).due_at == AT
    assert transitions.no_later_than(waiting, LATER + 1) == waiting
    assert (
        transitions.no_later_than(transitions.held_in_doubt(ENTRY, AT, Outcome("in_doubt")), AT).due_at
        is None
    )


def test_an_end_by_an_operator_names_who_failed_before() -> None:
    """As every other end does: the service hears of all providers that had the message."""
    step = MADE[State.IN_DOUBT, Cause.ORDERED_FAILED]
    assert isinstance(step, Transition)
    [event] = step.events
    settled = "sms: the outcome was unknown; settled by an operator as failed"
    assert event.details == f"email: no address; {settled}"


# What was sent and wasn't confirmed


def test_an_unconfirmed_message_goes_on_under_a_new_key_and_its_channel_is_spent() -> None:
    step = MADE[State.SENT, Cause.UNCONFIRMED]
    assert isinstance(step, Transition)
    assert (step.entry.provider, step.entry.stay, step.entry.sent_by) == (None, ENTRY.stay + 1, "sms")
    assert step.entry.spent == (*ENTRY.spent, Spent("sms", "not confirmed within 10m", ends_channel=True))
    assert (step.due_at, step.events) == (AT_ONCE, ())


def test_a_message_that_was_sent_before_stays_so_unless_a_later_channel_failed() -> None:
    """Whatever failed since, expiry leaves it sent; between intent and first byte that takes two steps."""
    failed = UNCONFIRMED._replace(provider="email").given_up("refused")
    assert transitions.undeliverable(failed, AT, "none left").after is State.FAILED
    assert transitions.expired(failed, State.READY, AT, AT).after is State.SENT
    begun = UNCONFIRMED.begun("email", b"12345678", AT)
    again = transitions.expired(begun, State.SENDING, AT, AT)
    assert (again.after, again.outcome) == (State.READY, Outcome("expired"))
    assert transitions.expired(again.entry, State.READY, AT, AT).after is State.SENT


# Who makes steps


@pytest.mark.slow
def test_steps_are_made_in_one_module() -> None:
    """Only it calls the constructors of Transition and ReceiptStep."""
    makers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", None)) in {"Transition", "ReceiptStep"}
    }
    assert makers == {"transitions.py"}


def test_no_statement_that_moves_a_message_holds_the_number_of_a_state() -> None:
    """The journal's SQL takes both states from a named transition."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (SOURCE / "journal").rglob("*.py")}
    assert {"operations", "statements", "orders", "receipt_match", "outbox", "repeats"} <= texts.keys()
    for name, text in texts.items():
        assert not re.search(r"state (?:=|<>|IN) *\(?\d", text), name


def test_a_message_that_expires_at_the_end_of_all_dates_is_due_at_a_date() -> None:
    """.NET writes its latest instant for "never"; `explain` shows when a message is due."""
    step = transitions.parked(ENTRY, AT, NEVER, "paused settings 2")
    assert step.due_at is not None
    assert format_instant(step.due_at).startswith("9999-12-31T23:59:59")
