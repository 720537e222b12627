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

PLANS = int(os.environ.get("DELIVERYD_PLANS", "200")) // 5
SHARES = 4
MOST_PLANS = 200
BREAKS = breaks_in(breaks_of_pausing)


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
    assert any(violations(run_plan(plan_with_pauses(seed))) for seed in range(MOST_PLANS))
