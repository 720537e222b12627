"""Plans with rates in SMS parts, and texts of some."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Seeded
from simulation.contents import Content
from simulation.drawing import plan_of_single_providers
from simulation.plan import (
    CHANNELS,
    End,
    Life,
    Message,
    Offers,
    Person,
    Plan,
    Step,
    Template,
    Trouble,
    Tuning,
)
from simulation.scenes import WELL

TEXTS = ("a" * 150, "a" * 161, "ö€" * 120, "я" * 70, "я" * 200, "\U0001f600" * 90)
"""Of 1, 2, 3, 1, 3 and 3 parts."""

RATES = ("3 parts/s", "10 parts/s", "120 parts/m")
TROUBLES = (Trouble.BUSY, Trouble.RESET_AFTER, Trouble.GATEWAY_AFTER, Trouble.TOO_MANY, None, None, None)


def paced_plan(seed: int) -> Plan:
    """Many messages at once for one provider, which fails at times, through restarts and kills."""
    choices = Seeded(f"paced {seed}")
    plan = plan_of_single_providers(seed)
    ends = (
        None,
        End(
            choices.one_of((Step.SENDING, Step.SENT, Step.COMMIT_AFTER)), choices.number(3, 40), is_crash=True
        ),
        End(Step.SENT, choices.number(3, 20), is_crash=False),
    )
    count, troubles = choices.one_of((30, 60)), choices.one_of((0, 20, 60))
    return replace(
        plan,
        tuning=Tuning(
            take=100, in_flight=100, concurrency=choices.one_of((100, 2)), attempts=20, post=500,
            intermediate=(), breaker=choices.one_of((10, 2)), rate=choices.one_of(RATES),
        ),
        messages=tuple(Message(id_, choices.number(1, len(TEXTS)), 1, {}) for id_ in range(1, count + 1)),
        malformed=(),
        templates={id_: Template(_by_sms(text), None) for id_, text in enumerate(TEXTS, 1)},
        people={1: Person("Ann", "en", "+447700900101", None)},
        troubles={**WELL, "provider": tuple(choices.one_of(TROUBLES) for _ in range(troubles))},
        provider_seconds=0.01,
        most_events=500,
        directory_down=(),
        directory_seconds=0.0,
        jumps=(),
        shortages=(),
        errands=(),
        lives=tuple(Life(CHANNELS[1:2], (), end) for end in (choices.one_of(ends), None)),
        offers=Offers.AGAIN,
        hangs=(),
        suspensions=(),
        renewal=None,
        is_fair=False,
        has_spare=False,
    )  # fmt: skip


def _by_sms(text: str) -> Content:
    return {"en": {"sms": {"text": text}}}
