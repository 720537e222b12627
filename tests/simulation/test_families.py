"""Plans about one thing alone: each keeps all promises, and each deliberate break of that thing is found."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from simulation.bounding import bounded_plan
from simulation.destining import destined_plan
from simulation.guarding import guarded_plan
from simulation.limiting import limited_plan
from simulation.mutations import (
    AHEAD,
    BOUNDING,
    DESTINING,
    GUARDING,
    LIMITING,
    PACING,
    REJECTING,
    SLOWING,
    TURNING,
    WINDOWING,
    Break,
)
from simulation.oracle import violations
from simulation.pacing import paced_plan
from simulation.plan import Plan
from simulation.rejecting import rejecting_plan
from simulation.run import run_plan
from simulation.slowing import slowed_plan
from simulation.soak import garbage_collected_seldom
from simulation.taking_ahead import ahead_plan
from simulation.taking_turns import turning_plan
from simulation.windowing import windowed_plan

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

PLANS = int(os.environ.get("DELIVERYD_PLANS", "100"))
SHARES = 2


class Family(NamedTuple):
    """Plans about one thing; one in `part` of all plans is run, and a break is found in `most` of them."""

    plan: Callable[[int], Plan]
    breaks: Mapping[str, Break]
    part: int
    most: int


FAMILIES = {
    "rejections": Family(rejecting_plan, REJECTING, part=10, most=30),
    "limits": Family(limited_plan, LIMITING, part=5, most=100),
    "ahead": Family(ahead_plan, AHEAD, part=5, most=100),
    "bounds": Family(bounded_plan, BOUNDING, part=5, most=100),
    "destinations": Family(destined_plan, DESTINING, part=5, most=300),
    "turns": Family(turning_plan, TURNING, part=5, most=60),
    "windows": Family(windowed_plan, WINDOWING, part=5, most=100),
    "guards": Family(guarded_plan, GUARDING, part=10, most=30),
    "rates": Family(paced_plan, PACING, part=10, most=30),
    "slowness": Family(slowed_plan, SLOWING, part=20, most=30),
}

SEEN = {"channel_closed_by_three_refused_ids": 413, "places_left_to_the_backlog_of_a_provider": 97}
"""Where the search begins: a seed that showed it once."""


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("name", FAMILIES)
def test_every_plan_of_a_family_keeps_all_promises(name: str, share: int) -> None:
    """Through restarts, kills, and operators' orders."""
    family, broken = FAMILIES[name], []
    with garbage_collected_seldom():
        for seed in range(share, max(PLANS, 100) // family.part, SHARES):
            broken += [f"{seed}: {violation}" for violation in violations(run_plan(family.plan(seed)))]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family in FAMILIES for name in FAMILIES[family].breaks]
)
def test_what_is_broken_on_purpose_is_found_out(
    family: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of the plans of its family."""
    plan, breaks, _, most = FAMILIES[family]
    breaks[name](monkeypatch)
    first = SEEN.get(name, 0)
    assert any(violations(run_plan(plan(seed))) for seed in range(first, first + most))
