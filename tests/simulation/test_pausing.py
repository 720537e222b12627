"""Operators who pause and resume, through all faults: nothing of it is sent meanwhile, nothing is lost."""

from __future__ import annotations

import os

import pytest

from simulation import breaks_of_pausing
from simulation.mutations import breaks_in
from simulation.oracle import violations
from simulation.pausing import plan_with_pauses
from simulation.run import run_plan
from simulation.soak import garbage_collected_seldom

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

PLANS = int(os.environ.get("DELIVERYD_PLANS", "100")) // 5
SHARES = 4
MOST_PLANS = 200
BREAKS = breaks_in(breaks_of_pausing)
SEEN = {
    "pause_passed_over_by_what_is_queued": 7,
    "provider_used_while_it_is_paused": 33,
    "pauses_forgotten_by_a_restart": 10,
    "messages_left_behind_after_a_pause": 4,
    "messages_taken_while_the_intake_is_paused": 31,
}
"""Where the search begins: a seed that showed it once."""


@pytest.mark.parametrize("share", range(SHARES))
def test_every_plan_with_pauses_keeps_all_promises(share: int) -> None:
    with garbage_collected_seldom():
        broken = [
            f"seed {seed}: {text}"
            for seed in range(share, PLANS, SHARES)
            for text in violations(run_plan(plan_with_pauses(seed)))
        ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", BREAKS)
def test_a_worker_whose_pauses_are_broken_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[name](monkeypatch)
    first = SEEN.get(name, 0)
    assert any(violations(run_plan(plan_with_pauses(seed))) for seed in range(first, first + MOST_PLANS))
