"""Plans in which the deliveries of some providers take long from some second on."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Seeded
from simulation.contents import GERMAN, WHOLE, Content
from simulation.drawing import plan_of_single_providers
from simulation.plan import (
    CHANNELS,
    PROVIDERS,
    End,
    Jump,
    Life,
    Message,
    Named,
    Offers,
    Plan,
    Report,
    Slowness,
    Step,
    Template,
    Tuning,
)
from simulation.scenes import AN_HOUR, WELL

BY_CHAT: Content = {"en": {"messenger": GERMAN}}
"""Needs nothing of the customer."""

MESSAGES = 600
SLOW_AFTER = 2.0
DELAY = 6.0
"""Seconds that slow deliveries take longer; the others take less than one."""


def slowed_plan(seed: int) -> Plan:
    """Of two or three providers one is slow, or all are, or none; nothing else goes wrong but the clock."""
    choices = Seeded(f"slowed {seed}")
    plan = plan_of_single_providers(seed)
    own = PROVIDERS[CHANNELS[0]][: choices.one_of((2, 2, 3))]
    weights = {name: choices.one_of((1, 2)) for name in own}
    slow = choices.one_of((own[:1], own[:1], own[1:2], own, ()))
    crash = End(choices.one_of((Step.SENT, Step.COMMIT_AFTER)), choices.number(20, 90), is_crash=True)
    begin = choices.number(0, 200) / 10
    return replace(
        plan,
        tuning=Tuning(
            take=100, in_flight=100, concurrency=100, attempts=4, post=500, intermediate=(), breaker=10,
            slow_after=SLOW_AFTER,
        ),
        messages=tuple(_message(id_, choices.number(1, 9) / 10) for id_ in range(1, MESSAGES + 1)),
        malformed=(),
        templates={1: Template(BY_CHAT, None)},
        troubles=WELL,
        provider_seconds=0.4,
        most_events=500,
        directory_down=(),
        directory_seconds=0.0,
        jumps=choices.one_of(((), (), (Jump(begin + 30.0, choices.one_of((AN_HOUR, -AN_HOUR))),))),
        shortages=(),
        errands=(),
        lives=(*choices.one_of(((), (Life(CHANNELS[:1], (), crash),))), Life(CHANNELS[:1], (), None)),
        offers=Offers.AGAIN,
        handed_at_once=3,
        is_fair=False,
        has_spare=False,
        hangs=(),
        suspensions=(),
        renewal=None,
        weights=weights | dict.fromkeys(CHANNELS[1:], 1),
        slowness=Slowness(slow, begin, DELAY),
    )  # fmt: skip


def _message(id_: int, delay: float) -> Message:
    report = Report(delay, "delivered", copies=1, answer_lost=False, names=Named.KEY)
    return Message(id_, 1, 1, WHOLE, (report,))
