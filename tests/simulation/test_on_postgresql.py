"""The same plans and the same oracle where the journal is a PostgreSQL database, of one worker at a time."""

from __future__ import annotations

import os
import time

import pytest

from simulation.drawing import seeded_plan
from simulation.oracle import violations
from simulation.run import run_plan
from simulation.soak import garbage_collected_seldom, keeping_on
from support.postgres import server_url

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_cover,
]

PLANS = int(os.environ.get("DELIVERYD_PLANS", "300"))
SHARES = 4
SECONDS = 3.0 * PLANS / 300
"""That a share takes at most: how many plans there is time for depends on the machine."""

BROKE_ONCE = (14, 102, 239, 930000028, 930000045)
"""Seeds of plans in which the worker ended, or asked for messages, while its database was out of reach.

The last two were judged wrongly: a log of a crashed worker that nobody had taken over, and a clock put back.
"""


@pytest.fixture(scope="module")
def server() -> str:
    """The URL of a real server."""
    url = server_url()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return url


@pytest.mark.parametrize("share", range(SHARES))
def test_every_plan_of_a_seed_keeps_all_promises_on_postgresql(share: int, server: str) -> None:
    ends = time.monotonic() + SECONDS
    broken = []
    with garbage_collected_seldom():
        for seed in range(share, PLANS, SHARES):
            history = run_plan(seeded_plan(seed), keeping_on(server))
            broken += [f"seed {seed}: {text}" for text in violations(history)]
            if time.monotonic() > ends:
                break
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("number", BROKE_ONCE)
def test_a_plan_that_once_broke_a_promise_on_postgresql_keeps_it(number: int, server: str) -> None:
    assert not violations(run_plan(seeded_plan(number), keeping_on(server)))


def test_a_seed_gives_the_same_run_again_on_postgresql(server: str) -> None:
    first, second = (run_plan(seeded_plan(7), keeping_on(server)) for _ in range(2))
    assert [post.order for post in first.ledger.posted] == [post.order for post in second.ledger.posted]
    assert [asked.at for asked in first.ledger.asked] == [asked.at for asked in second.ledger.asked]
    assert dict(first.rows) == dict(second.rows)
