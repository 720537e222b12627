"""Plans in which SMS providers serve some countries, which change with a restart or a reload."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Choices, Seeded
from simulation.contents import GREETINGS, SMS, Content
from simulation.drawing import plan_of_single_providers
from simulation.limiting import BY_SMS, LATER
from simulation.plan import CHANNELS, PROVIDERS, Life, Plan, Reload, Served, Template, Trouble
from simulation.scenes import MAY_HAVE_ARRIVED
from simulation.serving import NUMBERS

BY_SMS_OR_MAIL: Content = {"en": {"sms": SMS, "email": {"subject": "s", "body": "b"}, "greetings": GREETINGS}}

BUSY = (Trouble.BUSY, Trouble.BUSY, None)
"""What was put off again and again waits for its next try when the numbers change."""

COUNTRIES = (("DE",), ("DE", "AT"), ("GB",), ("GB", "CA"), ("JE", "US"))
PREFIXES = (("+49",), ("+4915",), ("+4477", "+1"), ("+447700900",), ("+43664",))


def destined_plan(seed: int) -> Plan:
    """The plan of a seed, each of whose lives names numbers of the channel, some providers, or none."""
    choices = Seeded(f"destined {seed}")
    plan = plan_of_single_providers(seed)
    providers = PROVIDERS["sms"][: choices.one_of((1, 2, 2, 3))]
    content = choices.one_of((BY_SMS, BY_SMS, BY_SMS_OR_MAIL))
    lives = plan.lives if len(plan.lives) > 1 else (replace(plan.lives[0]), *plan.lives)
    if choices.number(0, 1):  # what a crash leaves may be in doubt, and stays
        lives = tuple(replace(each, end=each.end and replace(each.end, is_crash=False)) for each in lives)
    plan = replace(
        plan,
        tuning=replace(plan.tuning, lookup_after=choices.one_of((None, None, 0.5))),
        lives=tuple(_destined(choices, replace(life, channels=CHANNELS), providers) for life in lives),
        weights=dict.fromkeys(("messenger", *providers, "email"), 1),
        templates={id_: Template(content, each.expires) for id_, each in plan.templates.items()},
        people={
            id_: replace(each, phone=choices.one_of((*NUMBERS, None))) for id_, each in plan.people.items()
        },
        renewal=None,
        has_spare=False,
        is_fair=False,
        outages=(),
    )
    if choices.number(0, 1):
        answers = choices.one_of((LATER, MAY_HAVE_ARRIVED, BUSY))
        troubles = tuple(choices.one_of(answers) for _ in range(choices.one_of((4, 8, 32))))
        plan = replace(
            plan,
            troubles={**plan.troubles, "provider": troubles},
            tuning=replace(plan.tuning, attempts=choices.one_of((4, 10)), breaker=0),
        )
    if choices.number(0, 1):
        return plan
    if choices.number(0, 1):
        plan = _queued(choices, plan)
    reloads = tuple(_reload(choices, providers) for _ in range(choices.one_of((1, 2, 3))))
    # A disk is full by the journal's reserve, which a reload sets anew.
    return replace(plan, reloads=reloads, errands=(), jumps=(), shortages=())


def _queued(choices: Choices, plan: Plan) -> Plan:
    """The plan with many messages, which are queued for longer than a reload takes."""
    some = plan.messages[:4]
    return replace(
        plan,
        tuning=replace(plan.tuning, concurrency=1, in_flight=100, take=100),
        provider_seconds=choices.one_of((0.4, 0.9)),
        messages=tuple(replace(some[n % len(some)], id=n + 1) for n in range(16)),
    )


def _destined(choices: Choices, life: Life, providers: tuple[str, ...]) -> Life:
    named = [_served(choices, each) for each in (None, *providers) if choices.number(0, 1)]
    return replace(life, served=tuple(named), allows_premium=choices.number(0, 2) == 0)


def _served(choices: Choices, provider: str | None) -> Served:
    which = choices.number(0, 2)
    countries = choices.one_of(COUNTRIES) if which != 1 else None
    return Served(provider, countries, choices.one_of(PREFIXES) if which else None)


def _reload(choices: Choices, providers: tuple[str, ...]) -> Reload:
    to = _destined(choices, Life(CHANNELS, choices.one_of(((), (), CHANNELS)), None), providers)
    return Reload(choices.number(0, 60) / 20, to, take=100, in_flight=100, is_elsewhere=False)
