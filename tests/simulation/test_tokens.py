"""Plans in which every request needs a token: all messages are sent, and the token server is spared."""

from __future__ import annotations

import os

import pytest

from simulation.mutations import TOKENS
from simulation.oracle import violations
from simulation.run import run_plan
from simulation.soak import garbage_collected_seldom
from simulation.token_plans import token_plan

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

PLANS = max(int(os.environ.get("DELIVERYD_PLANS", "100")) // 2, 10)


def test_every_plan_with_tokens_keeps_all_promises() -> None:
    """However its tokens end and its server fails: no try is used up, and no message is lost."""
    broken = []
    with garbage_collected_seldom():
        for seed in range(PLANS):
            broken += [f"{seed}: {violation}" for violation in violations(run_plan(token_plan(seed)))]
    assert not broken, "\n".join(broken)


MOST_PLANS = 40


@pytest.mark.parametrize("name", TOKENS)
def test_tokens_that_are_broken_on_purpose_are_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    TOKENS[name](monkeypatch)
    assert any(violations(run_plan(token_plan(seed))) for seed in range(MOST_PLANS))
