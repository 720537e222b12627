"""All of what happened in one plan, as text."""

from __future__ import annotations

from collections.abc import Sequence
from pprint import pformat

from simulation.ledger import Accepted, Asked, Handed, Ordered, Polled, Posted, Reported
from simulation.plan import Plan
from simulation.run import History
from simulation.sharing_plan import SharedPlan


def story(plan: Plan | SharedPlan, history: History, broken: Sequence[str]) -> list[str]:
    """The plan, the ledger's records in their order, and what was broken."""
    ledger = history.ledger
    records: list[Handed | Polled | Posted | Asked | Accepted | Reported | Ordered] = [
        *ledger.handed,
        *ledger.polled,
        *ledger.posted,
        *ledger.asked,
        *ledger.accepted,
        *ledger.reported,
        *ledger.ordered,
    ]
    lives = [f"life {number}: {life}" for number, life in enumerate(history.lives)]
    told = [str(record) for record in sorted(records, key=lambda record: record.order)]
    taken = [str(batch) for batch in ledger.taken.values() if batch.whole < len(batch.raws)]
    crashed = f"crashed: {sorted(ledger.crashed)}; answered requests: {sorted(ledger.answered)}"
    violations = [f"VIOLATION: {text}" for text in broken]
    return [
        pformat(plan, width=110),
        *lives,
        crashed,
        *taken,
        *told,
        *map(str, history.rows.values()),
        *violations,
    ]
