"""Plans in which an installation sends only to some customers, who change with a restart or a reload."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Choices, Seeded
from simulation.contents import GREETINGS, SMS, Content
from simulation.drawing import PHONES, plan_of_single_providers
from simulation.plan import CHANNELS, Life, Plan, Reload, Template, Trouble
from simulation.scenes import DOUBTS, MAY_HAVE_ARRIVED

BY_SMS: Content = {"en": {"sms": SMS, "greetings": GREETINGS}}
"""One channel: which of several has an address on the list isn't what these plans are about."""

ENTRIES = (
    "customer:1",
    "customer:2",
    "customer:3",
    *(phone for phone in PHONES if phone is not None),
    "+44770090010*",
    "+4477*",
    "*@example.org",
    "ann@example.org",
)
"""Addresses of the customers; by that of their e-mail nothing can be sent as an SMS."""

LATER: tuple[Trouble | None, ...] = (*MAY_HAVE_ARRIVED, *DOUBTS, Trouble.RESET_AFTER, None, None)


def limited_plan(seed: int) -> Plan:
    """The plan of a seed, each of whose lives has a list or a share of its own, or neither."""
    choices = Seeded(f"limited {seed}")
    plan = plan_of_single_providers(seed)
    by_sms = choices.number(0, 2) > 0
    entries = ENTRIES if by_sms else ENTRIES[:3]
    lives = plan.lives if len(plan.lives) > 1 else (replace(plan.lives[0]), *plan.lives)
    templates = {
        id_: Template(BY_SMS, template.expires) if by_sms else template
        for id_, template in plan.templates.items()
    }
    plan = replace(
        plan,
        tuning=replace(plan.tuning, lookup_after=choices.one_of((None, None, 0.5))),
        lives=tuple(_limited(choices, life, entries) for life in lives),
        templates=templates,
        has_spare=False,
        is_fair=False,
        outages=(),
    )
    if choices.number(0, 1):
        plan = replace(
            plan,
            troubles={
                **plan.troubles,
                "provider": tuple(choices.one_of(LATER) for _ in range(choices.one_of((4, 8)))),
            },
        )
    if choices.number(0, 1):
        return plan
    reloads = tuple(_reload(choices, entries) for _ in range(choices.one_of((1, 2, 3))))
    # A disk is full by the journal's reserve, which a reload sets anew.
    return replace(plan, reloads=reloads, errands=(), jumps=(), shortages=())


def _limited(choices: Choices, life: Life, entries: tuple[str, ...]) -> Life:
    """The life with some of the entries, a share, both, or without limits."""
    count = choices.one_of((None, 1, 1, 2, 3))
    only_to = None if count is None else tuple(choices.one_of(entries) for _ in range(count))
    return replace(life, only_to=only_to, share=choices.one_of((None, None, None, "0%", "30%", "100%")))


def _reload(choices: Choices, entries: tuple[str, ...]) -> Reload:
    to = _limited(choices, Life(CHANNELS, choices.one_of(((), (), CHANNELS)), None), entries)
    return Reload(choices.number(0, 60) / 20, to, take=100, in_flight=100, is_elsewhere=False)
