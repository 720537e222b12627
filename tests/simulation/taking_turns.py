"""Plans in which one settings id has a backlog beside others, and some go before or after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulation.choosing import Choices, Seeded
from simulation.contents import WHOLE
from simulation.drawing import plan_of_single_providers
from simulation.plan import CHANNELS, End, Life, Message, Offers, Outage, Plan, Step, Template, Trouble
from simulation.scenes import CHAT_ONLY, WELL

BACKLOG, OTHERS = 1, (2, 3)
"""The settings id of the backlog, and those beside it."""

ENDS = (Step.COMMIT_BEFORE, Step.COMMIT_AFTER, Step.SENDING, Step.SENT)

SOME_FIRST = ({"settings": (2,), "priority": "high"},)
SOME_LAST = ({"settings": (2,), "priority": "low"},)
BACKLOG_FIRST = ({"settings": (1,), "priority": "high"},)
BACKLOG_LAST = ({"settings": (1,), "priority": "low"},)
RULES: tuple[tuple[Mapping[str, Any], ...], ...] = (
    (), (), SOME_FIRST, SOME_FIRST, SOME_LAST, BACKLOG_FIRST, BACKLOG_LAST,
)  # fmt: skip


_OUTAGE = Outage("messenger", 0.0, 20.0, Trouble.BUSY)
"""Meanwhile all that was taken waits in the journal."""


def turning_plan(seed: int) -> Plan:
    """The plan of a seed: all is well but an outage, and kills and stops of the worker."""
    choices = Seeded(f"turning {seed}")
    plan = plan_of_single_providers(seed)
    lives = [_life(choices, choices.number(20, 200)) for _ in range(choices.one_of((0, 0, 1, 2)))]
    return replace(
        plan,
        tuning=replace(
            plan.tuning, take=100, in_flight=choices.one_of((10, 20)), concurrency=choices.one_of((1, 2)),
            attempts=2, post=500, breaker=choices.one_of((3, 10)), intermediate=(), cache_ttl=300.0,
        ),
        weights={"messenger": 1},
        messages=tuple(
            Message(n, settings_id, 1, WHOLE) for n, settings_id in enumerate(_settings_ids(choices), 1)
        ),
        malformed=(),
        templates={id_: Template(CHAT_ONLY, None) for id_ in (BACKLOG, *OTHERS)},
        troubles=WELL,
        provider_seconds=0.1,
        most_events=500,
        directory_down=(),
        directory_seconds=0.0,
        jumps=(),
        shortages=(),
        errands=(),
        lives=(*lives, _life(choices, None)),
        offers=Offers.AGAIN,
        hangs=(),
        suspensions=(),
        renewal=None,
        is_fair=False,
        outages=choices.one_of(((), (_OUTAGE,), (_OUTAGE,))),
        takes_turns=True,
    )  # fmt: skip


def _life(choices: Choices, nth: int | None) -> Life:
    """A life with priorities of its own; it ends when it comes by a step for the nth time."""
    end = None if nth is None else End(choices.one_of(ENDS), nth, is_crash=choices.number(0, 3) > 0)
    return Life(CHANNELS[:1], (), end, priorities=choices.one_of(RULES))


def _settings_ids(choices: Choices) -> list[int]:
    """Those of all messages: a backlog, and the others within it or behind it."""
    ids = [BACKLOG] * 150
    place = choices.one_of((40, 150))
    for other in OTHERS:
        ids[place:place] = [other] * choices.one_of((3, 10, 40))
    return ids
