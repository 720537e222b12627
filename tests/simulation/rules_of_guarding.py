"""Rules about settings whose texts suddenly have more parts: few of them reach a provider until resumed."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.guarding import RESUMED
from simulation.run import History

MOST = 50
"""Messages that a worker may send above the guard."""

LONGEST_OF_ONE = 160


def broken_guards(history: History) -> Iterator[str]:
    """Whatever restarts; then all that was held is sent, as the rule of all ends has it."""
    if history.plan.tuning.cost_guard is None:
        return
    early = {
        each.message_id
        for each in history.ledger.asked
        if each.at < RESUMED - 1.0 and len(each.content["text"]) > LONGEST_OF_ONE
    }
    guarded = [message.id for message in history.plan.messages if message.settings_id == 1]
    if len(early.intersection(guarded)) > MOST * len(history.lives):
        yield f"{len(early)} messages were sent though they have more parts than those before"
