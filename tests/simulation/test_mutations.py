"""Each deliberate break of the worker is seen by the oracle within a few plans."""

from __future__ import annotations

import pytest

from simulation.drawing import seeded_plan
from simulation.mutations import MUTATIONS
from simulation.oracle import violations
from simulation.run import run_plan

MOST_PLANS = 300

SEEN = {
    "expiry_checked_once": 57,
    "event_lost_on_split": 8,
    "receipt_before_match_forgotten": 8,
    "new_key_for_a_repeat": 8,
    "doubt_forgotten_after_a_busy_answer": 71,
    "doubt_dropped_on_recovery": 13,
    "repeats_sent_again": 5,
    "fallback_after_doubt": 41,
    "doubt_left_by_a_receipt_that_names_it": 35,
    "receipt_with_a_name_taken_for_known": 40,
    "ordered_resend_under_a_new_key": 48,
    "taken_with_a_full_disk": 27,
    "outage_taken_for_acceptance": 12,
}
"""Where the search begins: the first seed that showed it once. It goes on when plans are drawn otherwise."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_worker_that_is_broken_on_purpose_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    first = SEEN.get(name, 0)
    assert any(violations(run_plan(seeded_plan(seed))) for seed in range(first, first + MOST_PLANS))
