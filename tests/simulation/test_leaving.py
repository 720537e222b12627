"""Plans in which providers are removed and come back: what was said at one is said at no other."""

from __future__ import annotations

import os
import time

import pytest

from simulation.leaving import leaving_plan
from simulation.mutations import LEAVING
from simulation.oracle import violations
from simulation.run import run_plan
from simulation.soak import garbage_collected_seldom, keeping_on
from support.postgres import server_url

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_cover,
]

PLANS = max(int(os.environ.get("DELIVERYD_PLANS", "100")) // 10, 10)
SHARES = 2
SECONDS = 1.5
"""That the plans on a shared journal take at most: how many there is time for depends on the machine."""


@pytest.fixture(scope="module")
def server() -> str:
    """The URL of a real server."""
    url = server_url()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return url


@pytest.mark.parametrize("share", range(SHARES))
def test_every_plan_in_which_a_provider_leaves_keeps_all_promises(share: int) -> None:
    """By a restart or a reload, while messages wait there that it may have."""
    broken = []
    with garbage_collected_seldom():
        for seed in range(share, PLANS, SHARES):
            broken += [f"{seed}: {violation}" for violation in violations(run_plan(leaving_plan(seed)))]
    assert not broken, "\n".join(broken)


def test_every_plan_in_which_a_provider_leaves_keeps_all_promises_on_a_shared_journal(server: str) -> None:
    ends = time.monotonic() + SECONDS
    broken = []
    with garbage_collected_seldom():
        for seed in range(PLANS):
            history = run_plan(leaving_plan(seed), keeping_on(server))
            broken += [f"{seed}: {violation}" for violation in violations(history)]
            if time.monotonic() > ends:
                break
    assert not broken, "\n".join(broken)


MOST_PLANS = 100

SEEN = {
    "content_kept_by_what_leaves": 31,
    "left_provider_not_spent": 31,
    "try_counted_without_a_request": 33,
    "tries_kept_by_what_leaves": 42,
}
"""Where the search begins: a seed that showed it once."""


@pytest.mark.parametrize("name", LEAVING)
def test_a_removal_that_is_broken_on_purpose_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    LEAVING[name](monkeypatch)
    first = SEEN.get(name, 0)
    assert any(violations(run_plan(leaving_plan(seed))) for seed in range(first, first + MOST_PLANS))


@pytest.mark.parametrize("name", ["content_kept_by_what_leaves", "left_provider_not_spent"])
def test_a_removal_that_is_broken_on_purpose_is_found_out_on_a_shared_journal(
    name: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    LEAVING[name](monkeypatch)
    first = SEEN.get(name, 0)
    plans = (leaving_plan(seed) for seed in range(first, first + MOST_PLANS))
    assert any(violations(run_plan(plan, keeping_on(server))) for plan in plans)
