"""Plans with windows and lifetimes: nothing is sent outside of a window, or later than it lives."""

from __future__ import annotations

import os

import pytest

from simulation.mutations import WINDOWING
from simulation.oracle import violations
from simulation.run import run_plan
from simulation.soak import garbage_collected_seldom
from simulation.windowing import windowed_plan

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

PLANS = max(int(os.environ.get("DELIVERYD_PLANS", "100")) // 5, 20)
SHARES = 2


@pytest.mark.parametrize("share", range(SHARES))
def test_every_plan_with_windows_keeps_all_promises(share: int) -> None:
    """Through restarts, kills, steps of the clock, and operators' orders."""
    broken = []
    with garbage_collected_seldom():
        for seed in range(share, PLANS, SHARES):
            broken += [f"{seed}: {violation}" for violation in violations(run_plan(windowed_plan(seed)))]
    assert not broken, "\n".join(broken)


MOST_PLANS = 100

SEEN: dict[str, int] = {}
"""Where the search begins: a seed that showed it once."""


@pytest.mark.parametrize("name", WINDOWING)
def test_a_window_that_is_broken_on_purpose_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each break shows in a plan."""
    WINDOWING[name](monkeypatch)
    first = SEEN.get(name, 0)
    assert any(violations(run_plan(windowed_plan(seed))) for seed in range(first, first + MOST_PLANS))
