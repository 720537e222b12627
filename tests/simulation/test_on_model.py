"""Several workers on the server in memory: the plans of `test_sharing.py`, more of them in less time."""

from __future__ import annotations

import time

import pytest

import memory_postgres
from simulation import breaks_of_sharing, start
from simulation.mutations import breaks_in
from simulation.oracle import violations
from simulation.sharing_plan import shared_plan
from simulation.sharing_run import run_shared
from simulation.soak import garbage_collected_seldom

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_cover,
    # A worker that crashes leaves its connections as they are.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SHARES = 4
SECONDS = 1.5
"""That a share takes at most: how many plans there is time for depends on the machine."""

FIRST = 1_000_000
"""The seed of the first plan; those of `test_sharing.py` are others."""

ON_A_SERVER_ONLY = "leases_by_the_wall_clock"
"""No plan shows it here: `test_sharing.py` searches for it on a real server."""

BREAKS = {name: each for name, each in breaks_in(breaks_of_sharing).items() if name != ON_A_SERVER_ONLY}
MOST_PLANS = 250


@pytest.mark.parametrize("share", range(SHARES))
def test_every_plan_keeps_all_promises_on_the_model(share: int) -> None:
    ends = time.monotonic() + SECONDS
    broken: list[str] = []
    seed = FIRST + share
    with garbage_collected_seldom():
        while time.monotonic() < ends:
            history = run_shared(shared_plan(seed), memory_postgres.SERVER)
            broken += [f"seed {seed}: {text}" for text in violations(history)]
            seed += SHARES
    assert not broken, "\n".join(broken)


def test_a_seed_gives_the_same_run_again() -> None:
    """Whatever waits for a lock, and first in a process: there is nothing but the plan that decides."""
    start._empty_cache.cache_clear()
    runs = [run_shared(shared_plan(FIRST), memory_postgres.SERVER) for _ in range(2)]
    assert runs[0].ledger.statements == runs[1].ledger.statements
    assert runs[0].rows == runs[1].rows


@pytest.mark.soak
@pytest.mark.parametrize("name", BREAKS)
def test_workers_that_aren_t_kept_apart_are_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[name](monkeypatch)
    plans = (shared_plan(seed) for seed in range(MOST_PLANS))
    assert any(violations(run_shared(plan, memory_postgres.SERVER)) for plan in plans)
