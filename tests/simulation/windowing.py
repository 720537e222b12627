"""Plans in which messages may be sent in windows only, or live for so long only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulation.choosing import Choices, Seeded
from simulation.drawing import plan_of_single_providers
from simulation.limiting import LATER
from simulation.plan import CHANNELS, Jump, Life, Plan

ZONES = (None, "UTC", "Etc/GMT-1", "Etc/GMT-1", "Mars/Olympus")
"""Those of customers. A run begins at 08:00 in UTC, which is 09:00 in the third."""

CLOSED = ("08:00", "08:01", "08:01", "09:00", "09:01")
"""The minute of a day in which a window is closed."""


def windowed_plan(seed: int) -> Plan:
    """The plan of a seed, each of whose lives has windows of its own, a lifetime, both, or neither."""
    choices = Seeded(f"windowed {seed}")
    plan = plan_of_single_providers(seed)
    begin = choices.one_of((0.0, 40.0, 50.0, 55.0, 57.0, 58.0))
    troubles = dict(plan.troubles)
    if choices.number(0, 1):
        troubles["provider"] = tuple(choices.one_of(LATER) for _ in range(choices.one_of((4, 8))))
    if choices.number(0, 1):  # messages are queued while their window closes
        tuning = replace(plan.tuning, concurrency=1)
        plan = replace(plan, tuning=tuning, provider_seconds=choices.one_of((0.4, 0.9)))
    return replace(
        plan,
        troubles=troubles,
        people={id_: replace(each, zone=choices.one_of(ZONES)) for id_, each in plan.people.items()},
        lives=tuple(_windowed(choices, plan, life) for life in plan.lives),
        jumps=((Jump(0.0, begin),) if begin else ()) + plan.jumps,
        renewal=None,
        outages=(),
        has_spare=False,
        is_fair=False,
    )


def _windowed(choices: Choices, plan: Plan, life: Life) -> Life:
    rules = tuple(_rule(choices, plan) for _ in range(choices.one_of((0, 1, 1, 1, 2))))
    return replace(life, windows=rules, lifetime=choices.one_of((None, None, 5.0, 30.0, 90.0)))


def _rule(choices: Choices, plan: Plan) -> Mapping[str, Any]:
    closed = choices.one_of(CLOSED)
    opens = f"{closed[:4]}{int(closed[4]) + 1}"
    return {
        "settings": choices.one_of((None, None, (1,), tuple(plan.templates)[:2])),
        "channels": choices.one_of((None, None, CHANNELS[:1], CHANNELS[1:])),
        "window": {
            "from": opens,
            "to": closed,
            "zone": choices.one_of(("customer", "customer", "UTC", "Etc/GMT-1")),
            "outside": choices.one_of(("expire", "expire", "send")),
        },
    }
