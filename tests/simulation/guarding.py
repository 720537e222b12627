"""Plans in which the texts of one settings id suddenly have more parts."""

from __future__ import annotations

from dataclasses import replace

from deliveryd.journal.orders import ItemKind
from simulation.choosing import Seeded
from simulation.contents import Content
from simulation.drawing import plan_of_single_providers
from simulation.plan import CHANNELS, End, Halt, Life, Message, Offers, Person, Plan, Step, Template, Tuning
from simulation.scenes import WELL

BEFORE, AFTERWARDS = 300, 150
"""Messages of one part, and then of several."""

OTHERS = 2
"""The settings id of some messages that are long all the time."""

RESUMED = 70.0
"""The second of the run at which an operator resumes the settings."""

BY_SMS: Content = {"en": {"sms": {"text": "{text}"}}}


def guarded_plan(seed: int) -> Plan:
    """Through a restart or a kill before, while or after the texts become longer."""
    choices = Seeded(f"guarded {seed}")
    plan = plan_of_single_providers(seed)
    step = choices.one_of((Step.SENT, Step.SENDING, Step.COMMIT_AFTER))
    end = End(step, choices.one_of((250, 290, 299, 301, 310, 340)), is_crash=choices.number(0, 2) > 0)
    long = "b" * choices.one_of((400, 700))
    texts = ["a" * choices.number(1, 160) for _ in range(BEFORE)] + [long] * AFTERWARDS
    return replace(
        plan,
        tuning=Tuning(
            take=100, in_flight=100, concurrency=choices.one_of((100, 3)), attempts=4, post=500,
            intermediate=(), breaker=10, cost_guard=2.0,
        ),
        messages=tuple(
            Message(id_, OTHERS if choices.number(0, 9) == 0 else 1, 1, {"text": text})
            for id_, text in enumerate(texts, 1)
        ),
        malformed=(),
        templates={id_: Template(BY_SMS, None) for id_ in (1, OTHERS)},
        people={1: Person("Ann", "en", "+447700900101", None)},
        troubles=WELL,
        provider_seconds=0.01,
        most_events=500,
        directory_down=(),
        directory_seconds=0.0,
        jumps=(),
        shortages=(),
        errands=(),
        halts=(Halt(RESUMED - 1.0, 1.0, ItemKind.SETTINGS, "1", ends_by_itself=False),),
        lives=tuple(Life(CHANNELS[1:2], (), each) for each in choices.one_of(((None,), (end, None)))),
        offers=Offers.AGAIN,
        handed_at_once=10,
        hangs=(),
        suspensions=(),
        renewal=None,
        is_fair=False,
        has_spare=False,
    )  # fmt: skip
