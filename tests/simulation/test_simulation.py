"""Nothing lost, nothing twice, nothing late: the whole worker through faults, crashes and restarts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, given, settings

from simulation.drawing import plans, seeded_plan
from simulation.figures import Figures
from simulation.oracle import violations
from simulation.plan import Plan
from simulation.run import run_plan
from simulation.soak import live_through_all

PLANS = int(os.environ.get("DELIVERYD_PLANS", "300"))
DRAWN = max(PLANS // 10, 10)
"""Plans that Hypothesis draws: fewer, since drawing is slow, but it shrinks what fails."""

FOUND = (33,)
"""Seeds of plans that once showed a real mistake."""


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest) -> Iterator[Figures]:
    """The sums of all runs of this module, shown at the end."""
    figures = Figures()
    yield figures
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
        sys.stdout.write("\n" + "\n".join(figures.lines()) + "\n")


def test_every_plan_of_a_seed_keeps_all_promises(shown: Figures) -> None:
    broken = []
    for share in live_through_all(0, PLANS, os.cpu_count() or 1):
        shown.add_all(share.figures)
        broken += share.broken
    assert not broken


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once_is_never_found_again(seed: int, shown: Figures) -> None:
    assert not shown.add(run_plan(seeded_plan(seed)))


@settings(
    max_examples=DRAWN,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(plan=plans())
def test_every_plan_that_hypothesis_thinks_of_keeps_all_promises(plan: Plan) -> None:
    assert not violations(run_plan(plan))


def test_a_seed_gives_the_same_run_again() -> None:
    first, second = (run_plan(seeded_plan(7)) for _ in range(2))
    assert first.plan == second.plan
    assert [post.order for post in first.ledger.posted] == [post.order for post in second.ledger.posted]
    assert {row.id: row.state for row in first.rows.values()} == {
        row.id: row.state for row in second.rows.values()
    }
