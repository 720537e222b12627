"""Plans in which a provider is removed while messages wait there that it may have, and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulation.choosing import Choices, Seeded
from simulation.contents import GREETINGS, MAIL, SMS, WHOLE, Content
from simulation.drawing import plan_of_single_providers
from simulation.plan import (
    CHANNELS,
    End,
    Life,
    Message,
    Offers,
    Outage,
    Person,
    Plan,
    Reload,
    Renewal,
    Step,
    Template,
    Trouble,
)
from simulation.scenes import DOUBTS, MAY_HAVE_ARRIVED, WELL
from simulation.several import DOWN, NOT_TAKEN

ON_ALL_CHANNELS: Content = {
    "en": {"messenger": {"text": "{greeting}"}, "sms": SMS, "email": MAIL, "greetings": GREETINGS}
}
"""What messages say differs from channel to channel, and by the customer's name."""

PEOPLE = {
    id_: Person(name, "en", f"+44770090010{id_}", f"{name.lower()}@example.org")
    for id_, name in enumerate(("Ann", "Bob", "Cem"), start=1)
}
"""Everybody can be reached over each channel."""

RENAMED = {id_: Person("Anna", "en", f"+44770090020{id_}", f"anna{id_}@example.org") for id_ in PEOPLE}
"""The same people later: whatever is rendered anew says something else, and goes elsewhere."""

WEIGHTS = (
    {"sms": 20, "sms/second": 1, "email": 1},
    {"sms": 20, "email": 1},
    {"messenger": 20, "messenger/second": 1},
    {"messenger": 20, "sms": 1, "sms/second": 3},
    {"email": 20, "email/second": 1, "email/third": 1},
)
"""The heaviest provider is the one that leaves."""

LATER = (*MAY_HAVE_ARRIVED, *DOUBTS, Trouble.SILENCE_AFTER, *NOT_TAKEN)
"""What becomes of single requests, as a rule at the providers that stay."""


def leaving_plan(seed: int) -> Plan:
    """The plan of a seed: little else goes wrong in it."""
    choices = Seeded(f"leaving {seed}")
    plan = plan_of_single_providers(seed)
    weights = choices.one_of(WEIGHTS)
    leaving = max(weights, key=lambda provider: weights[provider])
    has_reloads = choices.number(0, 1) > 0
    templates = choices.one_of((1, 2))
    return replace(
        plan,
        tuning=replace(
            plan.tuning, attempts=choices.one_of((2, 4, 4, 50)), breaker=choices.one_of((10, 10, 3, 0)),
            cache_ttl=0.1, lookup_after=choices.one_of((None, None, None, 0.5)),
        ),
        weights=weights,
        messages=tuple(
            Message(
                id_, choices.number(1, templates), choices.number(1, len(PEOPLE)), WHOLE,
                choices.one_of(((), plan.messages[0].reports)),
            )
            for id_ in range(1, choices.number(2, 9))
        ),
        malformed=(),
        people=PEOPLE,
        renewal=choices.one_of((None, Renewal(choices.number(5, 40) / 10, RENAMED))),
        templates={id_: Template(ON_ALL_CHANNELS, None) for id_ in range(1, templates + 1)},
        troubles={
            **WELL,
            "provider": tuple(choices.one_of(LATER) for _ in range(choices.one_of((2, 6, 12)))),
        },
        outages=_outages(choices, leaving, weights),
        most_events=500,
        directory_down=(),
        jumps=(),
        shortages=(),
        hangs=(),
        suspensions=(),
        offers=Offers.AGAIN,
        is_fair=False,
        lives=_lives(choices, leaving) if not has_reloads else _reloaded_lives(choices),
        reloads=_reloads(choices, leaving) if has_reloads else (),
        errands=(),
    )  # fmt: skip


def _outages(choices: Choices, leaving: str, weights: Mapping[str, int]) -> tuple[Outage, ...]:
    """The one that leaves takes nothing at first; later another one may not, so that others are asked."""
    trouble = choices.one_of(
        (Trouble.BUSY, Trouble.BUSY, Trouble.BUSY_AFTER, Trouble.RESET_AFTER, Trouble.TOO_MANY)
    )
    first = Outage(leaving, 0.0, choices.one_of((2.0, 5.0, 20.0)), trouble)
    other = choices.one_of([each for each in weights if each != leaving])
    second = Outage(
        other, choices.number(0, 30) / 10, choices.one_of((2.0, 10.0, 30.0)), choices.one_of(DOWN)
    )
    return choices.one_of(((), (first,), (first,), (first, second)))


def _end(choices: Choices) -> End:
    """After some attempts, or some commits."""
    step = choices.one_of((Step.SENDING, Step.SENDING, Step.COMMIT_BEFORE, Step.COMMIT_AFTER))
    return End(step, choices.number(3, choices.one_of((8, 16))), is_crash=choices.number(0, 1) > 0)


def _lives(choices: Choices, leaving: str) -> tuple[Life, ...]:
    """With the provider, without it, with it; the last one with it, or not."""
    hold = choices.one_of(((), (), CHANNELS))
    whole = Life(CHANNELS, hold, None)
    without = replace(whole, removed=(leaving,))
    turns = choices.one_of(
        ((whole, without), (whole, without, whole), (whole, without, whole, without, whole))
    )
    return (*(replace(life, end=_end(choices)) for life in turns[:-1]), turns[-1])


def _reloaded_lives(choices: Choices) -> tuple[Life, ...]:
    whole = Life(CHANNELS, choices.one_of(((), (), CHANNELS)), None)
    return choices.one_of(((whole,), (replace(whole, end=_end(choices)), whole)))


def _reloads(choices: Choices, leaving: str) -> tuple[Reload, ...]:
    """The provider goes and comes back, in a second or in ten."""
    hold = choices.one_of(((), (), CHANNELS))
    back = Life(CHANNELS, hold, None)
    gone = replace(back, removed=(leaving,))
    turns = choices.one_of(((gone,), (gone, back), (gone, back), (gone, back, gone, back)))
    return tuple(
        Reload(choices.number(2, choices.one_of((20, 60, 200))) / 20, life, take=100, in_flight=100,
               is_elsewhere=choices.number(0, 3) == 0)
        for life in turns
    )  # fmt: skip
