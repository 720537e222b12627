"""Plans for several workers on one journal: what happens to their processes, besides what happens to one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from simulation.choosing import Choices, Seeded
from simulation.drawing import seeded_plan
from simulation.plan import CHANNELS, Jump, Life, Offers, Plan
from simulation.sharing_scenes import in_a_sharing_scene

LONGEST = 20.0
"""Seconds that anything lasts: two workers that look around take as many statements as two that work."""


class Blow(StrEnum):
    """What happens to a worker's process, or to its way to the database."""

    KILLED = "killed"
    FROZEN = "frozen, and woken"
    STOPPED = "stopped in order, and started again"
    CUT_OFF = "cut off from the database"
    CUT_AFTER_COMMIT = "cut off after a commit"


@dataclass(frozen=True, slots=True)
class Fault:
    """At some second of the run something happens to a worker, for so many seconds."""

    at: float
    worker: int
    blow: Blow
    seconds: float


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """A run of several workers. `plan` is what happens around them, with one life's configuration.

    `sql`: what a statement takes, in seconds. `skews`: by how much each worker's clock is wrong.
    """

    plan: Plan
    sql: float
    skews: tuple[float, ...]
    faults: tuple[Fault, ...]

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.skews)


def shared_plan(seed: int) -> SharedPlan:
    """The plan of a seed."""
    choices = Seeded(f"sharing {seed}")
    workers = choices.one_of((2, 2, 3))
    plan = _around(choices, seeded_plan(seed))
    plan = in_a_sharing_scene(Seeded(f"sharing scene {seed}"), plan)
    expires = any(template.expires is not None for template in plan.templates.values())
    if not expires and choices.number(0, 3) == 0:
        jump = Jump(choices.number(5, 100) / 10, choices.one_of((-3600.0, -10.0, 3.0, 3600.0)))
        plan = replace(plan, jumps=(jump,))
    return SharedPlan(
        plan,
        sql=choices.one_of((0.001, 0.005, 0.005, 0.02)),
        skews=tuple(0.0 if expires else choices.one_of((0.0, 0.0, -3.0, 40.0)) for _ in range(workers)),
        faults=tuple(
            sorted((_fault(choices, workers) for _ in range(choices.one_of((0, 1, 2, 2, 3, 4)))), key=_at)
        ),
    )


def _around(choices: Choices, plan: Plan) -> Plan:
    """The plan without what happens to one worker."""
    hold = choices.one_of(((), (), CHANNELS, plan.lives[0].hold))
    tuning, offers = plan.tuning, choices.one_of((Offers.AGAIN, Offers.AGAIN, Offers.UNTIL_DEQUEUED))
    if any("dequeued" in message.refused for message in plan.messages):
        offers = Offers.AGAIN  # else what is refused would be in the way of a small batch for ever
    take, most = choices.one_of((1, 2, 2, 7, 100)), max(tuning.in_flight, 3)
    return replace(
        plan,
        lives=(Life(CHANNELS, hold, None),),
        tuning=replace(
            tuning, take=take, in_flight=most, unavailable_after=min(tuning.unavailable_after, LONGEST)
        ),
        outages=tuple(replace(each, seconds=min(each.seconds, LONGEST)) for each in plan.outages),
        hangs=tuple(replace(each, seconds=min(each.seconds, LONGEST)) for each in plan.hangs),
        offers=Offers.ONCE if plan.offers is Offers.ONCE else offers,
        errands=(),
        jumps=(),
        shortages=(),
        suspensions=(),
        halts=(),
        reloads=(),
        is_fair=False,
        has_spare=False,
    )


def _fault(choices: Choices, workers: int) -> Fault:
    blow = choices.one_of((Blow.KILLED, Blow.KILLED, Blow.FROZEN, Blow.FROZEN, *Blow))
    return Fault(
        at=choices.number(1, choices.one_of((30, 60, 150))) / 10,
        worker=choices.number(0, workers - 1),
        blow=blow,
        seconds=choices.one_of((0.5, 3.0, 7.0, 11.0, 11.0, 20.0)),
    )


def _at(fault: Fault) -> float:
    return fault.at
