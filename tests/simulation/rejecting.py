"""Plans in which providers reject single messages and refuse templates beside others that they accept."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Choices, Seeded
from simulation.contents import WHOLE
from simulation.drawing import plan_of_single_providers
from simulation.plan import CHANNELS, HEALTHY, Life, Message, Offers, Plan, Rejections, Template
from simulation.scenes import CHAT_ONLY, WELL

UNTIL = 90.0
"""The second of the run from which on providers accept everything."""

EACH = 24
"""Messages of each refused template: more than those that it costs."""


def rejecting_plan(seed: int) -> Plan:
    """The plan of a seed: all is well but what providers don't accept."""
    choices = Seeded(f"rejecting {seed}")
    bad_templates = choices.one_of((0, 1, 4, 4))
    messages = tuple(
        Message(n + 1, settings_id, 1, WHOLE)
        for n, settings_id in enumerate(_settings_ids(choices, bad_templates))
    )
    well = [each.id for each in messages if each.settings_id == HEALTHY]
    rejected = choices.one_of((0, 1, 3, 12)) or (0 if bad_templates else 1)
    plan = plan_of_single_providers(seed)
    return replace(
        plan,
        tuning=replace(
            plan.tuning, take=100, in_flight=choices.one_of((10, 20)), concurrency=choices.one_of((1, 2)),
            attempts=choices.one_of((1, 2, 2, 4)), post=500, breaker=choices.one_of((10, 3)), intermediate=(),
            cache_ttl=300.0,
        ),
        weights=choices.one_of(({"messenger": 1}, {"messenger": 20, "messenger/second": 1})),
        messages=messages,
        malformed=(),
        templates={id_: Template(CHAT_ONLY, None) for id_ in range(HEALTHY, bad_templates + 2)},
        troubles=WELL,
        provider_seconds=0.1,
        most_events=500,
        directory_down=(),
        directory_seconds=0.0,
        jumps=(),
        shortages=(),
        errands=(),
        lives=(Life(CHANNELS[:1], (), None),),
        offers=Offers.AGAIN,
        hangs=(),
        suspensions=(),
        renewal=None,
        is_fair=False,
        rejections=Rejections(
            messages=frozenset(choices.one_of(well) for _ in range(rejected)),
            settings=frozenset(range(2, bad_templates + 2)),
            until=UNTIL,
        ),
    )  # fmt: skip


def _settings_ids(choices: Choices, bad_templates: int) -> list[int]:
    """Those of all messages: one refused template after the other, or all at once, among healthy ones."""
    waves = [[id_] * EACH + [HEALTHY] * EACH for id_ in range(2, bad_templates + 2)] or [[HEALTHY] * 120]
    if choices.number(0, 2):
        return [id_ for wave in waves for id_ in _mixed(choices, wave)]
    return _mixed(choices, [id_ for wave in waves for id_ in wave])


def _mixed(choices: Choices, values: list[int]) -> list[int]:
    """The values in a drawn order."""
    left, mixed = list(values), []
    while left:
        mixed.append(left.pop(choices.number(0, len(left) - 1)))
    return mixed
