"""Plans in which providers can be asked whether they have a message that is in doubt."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Choices
from simulation.plan import Plan, Trouble
from simulation.scenes import DOUBTS

ANSWERS = (
    Trouble.NO_CONNECTION,
    Trouble.SILENCE_BEFORE,
    Trouble.RESET_AFTER,
    Trouble.GATEWAY_AFTER,
    Trouble.GARBAGE_AFTER,
    Trouble.NOT_FOUND,
    Trouble.TOO_MANY,
    None,
    None,
    None,
)


def with_lookups(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, or with more doubts, and providers that can be asked about them."""
    if choices.number(0, 5) < 5 or plan.is_fair or plan.has_spare:
        return plan
    doubts = tuple(choices.one_of(DOUBTS) for _ in range(choices.one_of((2, 4, 8))))
    return replace(
        plan,
        tuning=replace(plan.tuning, lookup_after=choices.one_of((0.5, 3.0, 10.0))),
        troubles={
            **plan.troubles,
            "provider": choices.one_of((plan.troubles["provider"], doubts, doubts)),
            "lookup": tuple(choices.one_of(ANSWERS) for _ in range(choices.one_of((0, 2, 4)))),
        },
    )
