"""Plans in which channels have several providers, some of which fail, or aren't enabled, for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulation.choosing import Choices
from simulation.plan import CHANNELS, PROVIDERS, Life, Offers, Outage, Plan, Template, Trouble
from simulation.scenes import WELL

DOWN = (
    Trouble.NO_CONNECTION,
    Trouble.NO_CONNECTION,
    Trouble.BUSY,
    Trouble.BUSY,
    Trouble.TOO_MANY,
    Trouble.UNAUTHORIZED,
    Trouble.BAD_REQUEST,
    Trouble.BROKEN,
    Trouble.SILENCE_BEFORE,
    Trouble.RESET_AFTER,
)
"""What becomes of the requests to a provider that is down, misconfigured, or refuses everything."""

NOT_TAKEN = (Trouble.NO_CONNECTION, Trouble.BUSY, Trouble.TOO_MANY, Trouble.UNAUTHORIZED, Trouble.BAD_REQUEST)
"""The same, without those that leave a doubt."""


def with_several_providers(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, or with more providers."""
    number = choices.number(0, 5)
    if number < 3:
        return plan
    plan = replace(plan, weights=_weights(choices))
    if plan.is_fair:
        return plan
    if number == 5:
        return _with_spare(choices, plan)
    patience = choices.one_of((900.0, 900.0, 3.0, 20.0))
    return replace(
        plan,
        tuning=replace(plan.tuning, unavailable_after=patience),
        outages=tuple(_outage(choices, plan.weights) for _ in range(choices.one_of((0, 1, 2, 3)))),
        lives=tuple(_configured(choices, plan.weights, life) for life in plan.lives),
    )


def _weights(choices: Choices) -> dict[str, int]:
    return {
        provider: choices.one_of((1, 1, 3, 20, 80, 0))
        for channel in CHANNELS
        for provider in PROVIDERS[channel][: choices.one_of((1, 2, 2, 3))]
    }


def _outage(choices: Choices, weights: Mapping[str, int]) -> Outage:
    return Outage(
        provider=choices.one_of(tuple(weights)),
        at=choices.number(0, 60) / 10,
        seconds=choices.one_of((2.0, 10.0, 60.0, 300.0)),
        trouble=choices.one_of(DOWN),
    )


def _configured(choices: Choices, weights: Mapping[str, int], life: Life) -> Life:
    """The life without some of the providers; of each channel one is left."""
    added = [each for each in weights if each not in CHANNELS]
    others = tuple(weights)
    removed = choices.one_of((0, 0, 0, 1, 2)) if added else 0
    return replace(
        life,
        removed=tuple(choices.one_of(added) for _ in range(removed)),
        disabled=tuple(choices.one_of(others) for _ in range(choices.one_of((0, 0, 1, 2)))),
    )


def _with_spare(choices: Choices, plan: Plan) -> Plan:
    """All is well but for one provider of each channel, which is down for long; another one isn't.

    At times messenger has only those that are.
    """
    begin = choices.one_of((0.0, 0.0, 0.2, 0.6))
    trouble = choices.one_of(NOT_TAKEN)
    weights: dict[str, int] = {}
    outages = []
    for channel in CHANNELS:
        down, spare, third = PROVIDERS[channel]
        if choices.number(0, 1):
            down, spare = spare, down
        weights |= {down: choices.one_of((1, 20, 80)), spare: choices.one_of((1, 20, 0))}
        if choices.number(0, 2) == 2:
            weights[third] = choices.one_of((1, 20, 0))
        outages.append(Outage(down, begin, 300.0, trouble))
    if choices.number(0, 2) == 2:
        others = (each for each in PROVIDERS["messenger"] if each in weights and each != outages[0].provider)
        outages += [Outage(each, begin, 300.0, trouble) for each in others]
    some = plan.messages[:6]
    count = choices.one_of((2, 6, 12, 12, 40))
    return replace(
        plan,
        tuning=replace(
            plan.tuning, in_flight=choices.one_of((100, 10)), concurrency=choices.one_of((10, 10, 2)),
            attempts=choices.one_of((4, 100)), post=500, breaker=choices.one_of((1, 3)), cache_ttl=300.0,
            unavailable_after=10.0,
        ),
        weights=weights,
        messages=tuple(
            replace(some[id_ % len(some)], id=id_, refused=(), again=()) for id_ in range(1, count + 1)
        ),
        templates={id_: Template(template.content, None) for id_, template in plan.templates.items()},
        troubles=WELL,
        outages=tuple(outages),
        provider_seconds=choices.one_of((0.01, 0.1)),
        most_events=500,
        directory_down=(),
        directory_seconds=0.0,
        jumps=(),
        shortages=(),
        errands=(),
        lives=(*(plan.lives[:1] if choices.number(0, 1) else ()), Life(CHANNELS, (), None)),
        offers=Offers.AGAIN,
        hangs=(),
        suspensions=(),
        renewal=None,
        has_spare=True,
    )  # fmt: skip
