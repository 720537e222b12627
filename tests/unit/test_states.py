"""The table of states: which steps there are, that no others can be taken, and that the documents show it."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveryd.errors import IllegalTransition
from deliveryd.states import ENDED, TRANSITIONS, Cause, State, check_transition
from support.places import ROOT

LEGAL = {
    "TAKEN": {"READY", "SET_ASIDE"},
    "READY": {"WAITING", "SENDING", "IN_DOUBT", "SENT", "FAILED"},
    "WAITING": {"READY", "WAITING", "IN_DOUBT", "SENT"},
    "SENDING": {"READY", "WAITING", "IN_DOUBT", "SENT", "FAILED"},
    "IN_DOUBT": {"WAITING", "SENT", "FAILED"},
    "SENT": {"WAITING", "DELIVERED", "FAILED"},
    "DELIVERED": set(),
    "FAILED": {"WAITING", "SENT", "DELIVERED"},
    "SET_ASIDE": {"TAKEN", "READY"},
}


def reachable(start: State) -> set[State]:
    """All states that lie before a message in this one."""
    found: set[State] = set()
    coming = [start]
    while coming:
        for after in set(TRANSITIONS[coming.pop()].values()) - found:
            found.add(after)
            coming.append(after)
    return found


@pytest.mark.parametrize(("before", "after"), list(product(State, State)), ids=lambda state: state.name)
def test_each_step_is_taken_or_refused_as_the_table_says(before: State, after: State) -> None:
    """Every pair of states, and the refusal names both."""
    if after.name in LEGAL[before.name]:
        assert check_transition(before, after) is after
    else:
        with pytest.raises(IllegalTransition, match=rf"from {before.name} to {after.name}$"):
            check_transition(before, after)


def test_the_numbers_in_journals_keep_their_meaning() -> None:
    """A journal written by an earlier deliveryd is read by a later one."""
    assert [(state.value, state.name) for state in State] == [
        (1, "TAKEN"),
        (2, "READY"),
        (3, "WAITING"),
        (4, "SENDING"),
        (5, "IN_DOUBT"),
        (6, "SENT"),
        (7, "DELIVERED"),
        (8, "FAILED"),
        (9, "SET_ASIDE"),
    ]


def test_every_state_can_be_come_to_and_from_every_state_an_end() -> None:
    assert reachable(State.TAKEN) == set(State)
    assert all(reachable(state) & ENDED for state in set(State) - ENDED)


def test_a_message_that_was_sent_is_sent_again_only_for_want_of_a_receipt() -> None:
    """From SENT two causes lead back, both on the operator's word; from DELIVERED none does."""
    back = {cause for cause, after in TRANSITIONS[State.SENT].items() if after not in ENDED}
    assert back == {Cause.UNCONFIRMED, Cause.RECEIPT_FAILED_NEXT}
    assert not reachable(State.DELIVERED)


def test_sending_begins_nowhere_but_in_ready() -> None:
    """So that every attempt, first or retry, passes the checks of the line."""
    assert {before for before, steps in TRANSITIONS.items() if State.SENDING in steps.values()} == {
        State.READY
    }


@given(st.lists(st.sampled_from(State)))
def test_whatever_is_asked_for_a_message_only_walks_along_the_table(wishes: list[State]) -> None:
    """A refused step leaves it where it is; what is delivered stays so, what failed may turn out sent."""
    walk = [State.TAKEN]
    for wish in wishes:
        try:
            walk.append(check_transition(walk[-1], wish))
        except IllegalTransition:
            assert wish not in TRANSITIONS[walk[-1]].values()
    assert all(after in TRANSITIONS[before].values() for before, after in pairwise(walk))
    assert State.DELIVERED not in walk[:-1]
    after_failures = {after for before, after in pairwise(walk) if before is State.FAILED}
    assert {State.SENT, State.DELIVERED, State.WAITING}.issuperset(after_failures)


@pytest.mark.slow
def test_the_documents_show_the_table_as_it_is() -> None:
    """docs/explanation/states.md holds what docs/draw_states.py prints."""
    drawn = subprocess.run(
        [sys.executable, ROOT / "docs" / "draw_states.py"], capture_output=True, text=True, check=True
    ).stdout
    text = ROOT.joinpath("docs", "explanation", "states.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- states -->")[2].partition("<!-- /states -->")[0]
    assert shown.strip() == drawn.strip()
