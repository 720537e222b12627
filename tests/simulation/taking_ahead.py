"""Plans with few places, beyond which messages are taken ahead and wait in the journal."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Seeded
from simulation.drawing import plan_of_single_providers
from simulation.plan import Offers, Plan, Trouble

AGAIN = 100
"""Added to the id of a message for each that is like it."""


def ahead_plan(seed: int) -> Plan:
    """The plan of a seed with more messages, fewer places, and a bound of what is taken ahead."""
    choices = Seeded(f"ahead {seed}")
    plan = plan_of_single_providers(seed)
    messages = plan.messages
    for copy in range(1, choices.one_of((1, 2, 5))):
        messages += tuple(replace(each, id=each.id + copy * AGAIN, again=()) for each in plan.messages)
    troubles = dict(plan.troubles)
    if choices.number(0, 1):
        troubles["events"] = (Trouble.BUSY,) * choices.one_of((2, 4, 8))
    return replace(
        plan,
        messages=messages,
        troubles=troubles,
        tuning=replace(
            plan.tuning,
            take=choices.one_of((1, 2, 3)),
            in_flight=choices.one_of((1, 2, 4)),
            take_ahead=choices.one_of((1, 3, 10, 100)),
            concurrency=choices.one_of((1, 2)),
        ),
        provider_seconds=choices.one_of((0.1, 0.4, 0.9)),
        offers=choices.one_of((plan.offers, Offers.ONCE)),
        malformed=(),
        renewal=None,
        has_spare=False,
        is_fair=False,
    )
