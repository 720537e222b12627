"""Plans in which providers reject single messages and templates: all others are sent in time."""

from __future__ import annotations

import os

import pytest

from simulation.mutations import REJECTING
from simulation.oracle import violations
from simulation.rejecting import rejecting_plan
from simulation.run import run_plan
from simulation.soak import garbage_collected_seldom

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

PLANS = max(int(os.environ.get("DELIVERYD_PLANS", "100")) // 10, 10)
SHARES = 2


@pytest.mark.parametrize("share", range(SHARES))
def test_every_plan_with_rejections_keeps_all_promises(share: int) -> None:
    """What is rejected is tried as often as configured, and holds up no other message."""
    broken = []
    with garbage_collected_seldom():
        for seed in range(share, PLANS, SHARES):
            broken += [f"{seed}: {violation}" for violation in violations(run_plan(rejecting_plan(seed)))]
    assert not broken, "\n".join(broken)


MOST_PLANS = 30

SEEN = {"channel_closed_by_three_refused_ids": 413}
"""Where the search begins: a seed that showed it once."""


@pytest.mark.parametrize("name", REJECTING)
def test_a_rejection_that_is_broken_on_purpose_is_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    REJECTING[name](monkeypatch)
    first = SEEN.get(name, 0)
    assert any(violations(run_plan(rejecting_plan(seed))) for seed in range(first, first + MOST_PLANS))
