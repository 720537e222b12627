"""Plans with budgets and caps. An hour has a minute in them, so that messages wait for its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulation.choosing import Choices, Seeded
from simulation.contents import GERMAN, PLAIN_MAIL, WHOLE, Content
from simulation.drawing import plan_of_single_providers
from simulation.limiting import LATER
from simulation.plan import Jump, Life, Message, Person, Plan, Template, Trouble
from simulation.sharing_plan import SharedPlan, shared_plan

LONG = {"text": "Hallo {word}, " + "lang " * 40}
"""An SMS of two parts."""

BY_SMS: tuple[Content, ...] = ({"en": {"sms": GERMAN}}, {"en": {"sms": LONG}})
WITH_MAIL: Content = {"en": {"sms": GERMAN, "email": PLAIN_MAIL}}
NOT_TAKEN = (Trouble.BUSY, Trouble.TOO_MANY, Trouble.NO_CONNECTION, Trouble.BAD_REQUEST)
PEOPLE = {id_: Person("Ann", "en", f"+44770090010{id_}", f"a{id_}@example.org") for id_ in (1, 2)}


def bounded_plan(seed: int) -> Plan:
    """The plan of a seed, with the same limits in all of its lives."""
    choices = Seeded(f"bounded {seed}")
    plan = plan_of_single_providers(seed)
    begin = choices.one_of((0.0, 30.0, 50.0, 57.0))
    plan = _bounded(choices, plan)
    return replace(
        plan,
        jumps=(Jump(0.0, begin),) if begin else (),
        tuning=replace(plan.tuning, unavailable_after=900.0, lookup_after=None, in_flight=100),
    )


def shared_bounded_plan(seed: int) -> SharedPlan:
    """The same for several workers of one journal."""
    choices = Seeded(f"shared bounded {seed}")
    shared = shared_plan(seed)
    plan = _bounded(choices, shared.plan)
    lives = tuple(replace(life, limits=plan.lives[0].limits, removed=()) for life in shared.lives)
    plan = replace(plan, lives=(replace(plan.lives[0], removed=()),), jumps=(), halts=())
    skews = (0.0,) * shared.workers
    return replace(shared, plan=plan, lives=lives, skews=skews, commands=(), retention=None)


def _bounded(choices: Choices, plan: Plan) -> Plan:
    contents = (*BY_SMS, *BY_SMS, WITH_MAIL)
    templates = {id_: Template(choices.one_of(contents), None) for id_ in (1, 2, 3)}
    messages = tuple(
        Message(id_, choices.number(1, 3), choices.one_of((1, 1, 1, 2)), WHOLE)
        for id_ in range(1, choices.one_of((4, 6, 9, 12)) + 1)
    )
    limits = _limits(choices)
    troubles = {
        **dict.fromkeys(plan.troubles, ()),
        "provider": tuple(
            choices.one_of((*LATER, *NOT_TAKEN, None, None)) for _ in range(choices.one_of((0, 4, 9)))
        ),
    }
    return replace(
        plan,
        messages=messages,
        templates=templates,
        people=PEOPLE,
        troubles=troubles,
        lives=tuple(_with_limits(life, limits) for life in plan.lives),
        malformed=(), directory_down=(), hangs=(), outages=(), errands=(), shortages=(), suspensions=(),
        opt_outs=(), reloads=(), strangers=(), halts=(),
        renewal=None, has_spare=False, is_fair=False, rejections=None, tokens=None, moved=None,
        has_devices=False, weights={"messenger": 1, "sms": 1, "email": 1},
    )  # fmt: skip


def _with_limits(life: Life, limits: tuple[Mapping[str, Any], ...]) -> Life:
    return replace(life, channels=("messenger", "sms", "email"), limits=limits)


def _limits(choices: Choices) -> tuple[Mapping[str, Any], ...]:
    budgets = [_budget(choices) for _ in range(choices.one_of((0, 1, 1, 1, 2)))]
    caps = [_cap(choices)] if choices.number(0, 1) or not budgets else []
    return (*budgets, *caps)


def _budget(choices: Choices) -> Mapping[str, Any]:
    return {
        "settings": choices.one_of((None, None, (1,), (1, 2))),
        "channels": choices.one_of((None, ("sms",), ("sms",))),
        "budget": f"{choices.one_of((2, 3, 4, 6))} {choices.one_of(('messages', 'parts'))}/hour",
        "spent": choices.one_of(("wait", "wait", "next", "error")),
    }


def _cap(choices: Choices) -> Mapping[str, Any]:
    return {
        "settings": choices.one_of((None, (1, 2), (2, 3))),
        "cap": {
            "messages": choices.one_of((1, 2, 2, 3)),
            "per": choices.one_of(("20s", "40s", "90s")),
            "over": choices.one_of(("wait", "wait", "error")),
        },
    }
