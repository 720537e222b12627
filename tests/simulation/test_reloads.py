"""Plans with reloads: what holds without them holds with them."""

from __future__ import annotations

import os

import pytest

from simulation.mutations import RELOADING
from simulation.oracle import violations
from simulation.reloading import reloading_plan
from simulation.run import run_plan
from simulation.soak import garbage_collected_seldom

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

PLANS = max(int(os.environ.get("DELIVERYD_PLANS", "100")) // 5, 10)
SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_every_plan_with_reloads_keeps_all_promises(share: int) -> None:
    """Providers, channels, limits and policies change while messages are under way, also before crashes."""
    broken = []
    with garbage_collected_seldom():
        for seed in range(share, PLANS, SHARES):
            broken += [f"{seed}: {violation}" for violation in violations(run_plan(reloading_plan(seed)))]
    assert not broken, "\n".join(broken)


MOST_PLANS = 300

SEEN = {
    "queue_of_a_removed_provider_dropped": 76,
    "waiting_messages_left_at_a_removed_provider": 28,
    "doubts_released_from_a_removed_provider": 28,
    "routed_as_before_the_reload": 1,
    "held_doubts_never_repeated": 29,
    "tries_without_a_request_counted": 61,
    "kept_content_filled_up": 35,
    "held_though_the_mapping_is_back": 380,
    "questions_counted_as_tries": 839,
    "held_without_a_question": 105,
}
"""Where the search begins: a seed that showed it once."""


@pytest.mark.parametrize("name", RELOADING)
def test_a_reload_that_is_broken_on_purpose_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RELOADING[name](monkeypatch)
    first = SEEN.get(name, 0)
    assert any(violations(run_plan(reloading_plan(seed))) for seed in range(first, first + MOST_PLANS))
