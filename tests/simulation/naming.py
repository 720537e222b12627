"""Reports while answers are lost: a failure by the message's name, a delivery by the provider's id alone."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Choices
from simulation.plan import CHANNELS, Named, Plan, Report, Trouble
from simulation.scenes import WELL

RARE = 12
"""One of so many plans is one of these."""

LOST = (Trouble.RESET_AFTER, Trouble.SILENCE_AFTER, Trouble.CUT_AFTER, None)
WHEN = (0.0, 0.3, 1.0, 3.0)


def with_both_words(choices: Choices, plan: Plan) -> Plan:
    """The plan; now and then one in which both words come, in any order, for what isn't known to be sent."""
    if choices.number(1, RARE) < RARE or plan.is_fair or plan.has_spare:
        return plan
    return replace(
        plan,
        messages=tuple(replace(message, reports=_both(choices), refused=()) for message in plan.messages[:4]),
        troubles={**plan.troubles, **WELL, "provider": tuple(choices.one_of(LOST) for _ in range(6))},
        lives=tuple(
            replace(life, channels=CHANNELS, hold=choices.one_of(((), CHANNELS))) for life in plan.lives
        ),
        jumps=(),
        shortages=(),
    )


def _both(choices: Choices) -> tuple[Report, ...]:
    names = choices.one_of((Named.KEY, Named.MESSAGE))
    failed = Report(choices.one_of(WHEN), "failed", copies=1, answer_lost=False, names=names)
    delivered = Report(choices.one_of(WHEN), "delivered", copies=1, answer_lost=False, names=Named.NOTHING)
    return failed, delivered
