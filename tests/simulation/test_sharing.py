"""Several workers on one journal: their statements interleave, they die, freeze and are cut off."""

from __future__ import annotations

import os
import time

import pytest

from simulation import breaks_of_sharing
from simulation.bounding import shared_bounded_plan
from simulation.breaks_of_bounding import (
    counted_in_a_transaction_of_its_own,
    intents_are_counted_without_a_check,
)
from simulation.mutations import Break, breaks_in
from simulation.oracle import violations
from simulation.sharing_plan import shared_plan
from simulation.sharing_run import run_shared
from simulation.soak import garbage_collected_seldom
from support.postgres import server_url

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_cover,
]

PLANS = int(os.environ.get("DELIVERYD_PLANS", "300"))
SHARES = 4
SECONDS = 3.0 * PLANS / 300
"""That a share takes at most: how many plans there is time for depends on the machine."""

BREAKS = breaks_in(breaks_of_sharing)
MOST_PLANS = 60


@pytest.fixture(scope="module")
def server() -> str:
    """The URL of a real server."""
    url = server_url()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return url


@pytest.mark.parametrize("share", range(SHARES))
def test_every_plan_of_several_workers_keeps_all_promises(share: int, server: str) -> None:
    ends = time.monotonic() + SECONDS
    broken = []
    with garbage_collected_seldom():
        for seed in range(share, PLANS, SHARES):
            broken += [f"seed {seed}: {text}" for text in violations(run_shared(shared_plan(seed), server))]
            if time.monotonic() > ends:
                break
    assert not broken, "\n".join(broken)


def test_workers_hold_budgets_and_caps_together(server: str) -> None:
    """Through kills and takeovers; the providers count what comes from all workers."""
    ends = time.monotonic() + 2 * SECONDS
    broken = []
    with garbage_collected_seldom():
        for seed in range(PLANS):
            found = violations(run_shared(shared_bounded_plan(seed), server))
            broken += [f"seed {seed}: {text}" for text in found]
            if time.monotonic() > ends:
                break
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", [intents_are_counted_without_a_check, counted_in_a_transaction_of_its_own])
def test_workers_that_count_by_themselves_are_found_out(
    name: Break, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By plans with budgets."""
    name(monkeypatch)
    assert any(violations(run_shared(shared_bounded_plan(seed), server)) for seed in range(MOST_PLANS))


SEEN = {
    "fence_ignored": 259,
    "log_taken_over_twice": 479,
    "log_taken_over_as_it_is": 31,
    "log_given_back_too_early": 31,
    "ids_known_to_one_log": 917,
    "receipts_matched_once": 27,
    "reports_for_others_lost": 6,
    "pauses_kept_to_oneself": 8,
}
"""Where the search begins: a seed that showed it once."""


@pytest.mark.soak
@pytest.mark.parametrize("name", BREAKS)
def test_workers_that_aren_t_kept_apart_are_found_out(
    name: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BREAKS[name](monkeypatch)
    first = SEEN.get(name, 0)
    seeds = range(first, first + MOST_PLANS)
    assert any(violations(run_shared(shared_plan(seed), server)) for seed in seeds)


def test_a_statement_waits_for_another_worker_s_lock(server: str) -> None:
    """Else the transactions of several workers would come one after the other."""
    history = run_shared(shared_plan(0), server)
    assert not violations(history)
    assert history.ledger.statements > 0
    assert history.ledger.blocked > 0
