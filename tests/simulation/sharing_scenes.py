"""Scenes for several workers: plans bent so that what only they can get wrong happens often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulation.choosing import Choices
from simulation.contents import WHOLE
from simulation.plan import HEALTHY, Message, Named, Offers, Person, Plan, Report, Template, Trouble
from simulation.scenes import CHAT_ONLY, WELL

SLOW_EVENTS = (Trouble.SLOW, Trouble.BUSY, Trouble.SILENCE_AFTER, Trouble.RESET_AFTER, Trouble.SLOW, None)

NAMED = (Named.KEY, Named.NOTHING, Named.NOTHING)
"""What names the key goes to the worker that has the message; what has only the provider's id may pass it."""


def in_a_sharing_scene(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, as often as not; or bent to one of the scenes."""
    number = choices.number(0, 2 * len(_SCENES) - 1)
    return _SCENES[number](choices, plan) if number < len(_SCENES) else plan


def _receipts_at_once(choices: Choices, plan: Plan) -> Plan:
    """Providers report while the outcome is being recorded, to any worker: the commits pass each other."""
    return _well(choices, plan, (0.0, 0.02, 0.05, 0.1, 0.2))


def _events_behind(choices: Choices, plan: Plan) -> Plan:
    """The service takes its time for events, so that earlier ones wait with the worker that made them."""
    plan = _well(choices, plan, (0.1, 0.3, 0.5, 1.0))
    events = tuple(choices.one_of(SLOW_EVENTS) for _ in range(16))
    return replace(plan, troubles={**WELL, "events": (None, *events)})


def _slow_attempts(choices: Choices, plan: Plan) -> Plan:
    """What happens to a worker finds messages of it at providers."""
    return replace(_well(choices, plan, (0.1, 1.0, 3.0)), provider_seconds=choices.one_of((0.8, 1.5)))


def _well(choices: Choices, plan: Plan, delays: tuple[float, ...]) -> Plan:
    count = choices.one_of((6, 9, 12))
    return replace(
        plan,
        tuning=replace(
            plan.tuning, attempts=4, post=choices.one_of((500, 2)), breaker=10, receipt_deadline=None,
            failed_next=False, lookup_after=None, intermediate=(), concurrency=10, in_flight=100,
        ),
        messages=tuple(
            Message(id_, HEALTHY, 1, WHOLE, (_report(choices, delays),)) for id_ in range(1, count + 1)
        ),
        malformed=(),
        people={1: Person("Ann", "en", None, None)},
        templates={HEALTHY: Template(CHAT_ONLY, None)},
        weights={"messenger": 1},
        troubles=WELL,
        provider_seconds=choices.one_of((0.01, 0.1)),
        most_events=500,
        directory_down=(),
        offers=Offers.AGAIN,
        hangs=(),
        renewal=None,
        outages=(),
        opt_outs=(),
        has_devices=False,
    )  # fmt: skip


def _report(choices: Choices, delays: tuple[float, ...]) -> Report:
    return Report(
        choices.one_of(delays), "delivered", copies=1, answer_lost=False, names=choices.one_of(NAMED)
    )


_SCENES: tuple[Callable[[Choices, Plan], Plan], ...] = (_receipts_at_once, _events_behind, _slow_attempts)
