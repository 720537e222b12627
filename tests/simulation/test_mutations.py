"""Each deliberate break of the worker is seen by the oracle within a few plans."""

from __future__ import annotations

import pytest

from simulation.drawing import seeded_plan
from simulation.mutations import MUTATIONS
from simulation.oracle import violations
from simulation.run import run_plan

MOST_PLANS = 400


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_worker_that_is_broken_on_purpose_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    assert any(violations(run_plan(seeded_plan(seed))) for seed in range(MOST_PLANS))
