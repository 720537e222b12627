"""Plans for several workers on one journal: what happens to their processes, besides what happens to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from deliveryd.journal.orders import ItemKind
from simulation.choosing import Choices, Seeded
from simulation.drawing import ERRANDS, seeded_plan
from simulation.new_beginnings import VERBS
from simulation.pausing import halt
from simulation.plan import CHANNELS, Errand, Jump, Life, Offers, Plan
from simulation.sharing_scenes import in_a_sharing_scene

LONGEST = 20.0
"""Seconds that anything lasts: two workers that look around take as many statements as two that work."""

LATE = 25
"""Requests for messages after which one is handed out again that may be forgotten: some 20 seconds."""


class Blow(StrEnum):
    """What happens to a worker's process, or to its way to the database."""

    KILLED = "killed"
    FROZEN = "frozen, and woken"
    STOPPED = "stopped in order, and started again"
    CUT_OFF = "cut off from the database"
    CUT_AFTER_COMMIT = "cut off after a commit"
    FENCED = "ended by an operator, and started again"


_BLOWS = (
    Blow.KILLED,
    Blow.KILLED,
    Blow.FROZEN,
    Blow.FROZEN,
    *(each for each in Blow if each is not Blow.FENCED),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """At some second of the run something happens to a worker, for so many seconds."""

    at: float
    worker: int
    blow: Blow
    seconds: float


@dataclass(frozen=True, slots=True)
class Command:
    """An operator's errand. `cut`: seconds after which the command is killed; None: it isn't."""

    errand: Errand
    cut: float | None


@dataclass(frozen=True, slots=True)
class Retention:
    """What ended is kept for `seconds` only."""

    seconds: float
    pruned_every: float


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """A run of several workers. `plan` is what happens around them.

    `sql`: what a statement takes, in seconds. `skews`: by how much each worker's clock is wrong. `lives`: the
    configuration of each.
    """

    plan: Plan
    sql: float
    skews: tuple[float, ...]
    faults: tuple[Fault, ...]
    lives: tuple[Life, ...]
    commands: tuple[Command, ...] = ()
    retention: Retention | None = None

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
        # Due times stay where others work, so what was put off waits for as long as all clocks were put back.
        jump = Jump(choices.number(5, 100) / 10, choices.one_of((-60.0, -10.0, 3.0, 3600.0)))
        plan = replace(plan, jumps=(jump,))
    drawn = SharedPlan(
        plan,
        sql=choices.one_of((0.001, 0.005, 0.005, 0.02)),
        skews=tuple(0.0 if expires else choices.one_of((0.0, 0.0, -3.0, 40.0)) for _ in range(workers)),
        faults=tuple(
            sorted((_fault(choices, workers) for _ in range(choices.one_of((0, 1, 2, 2, 3, 4)))), key=_at)
        ),
        lives=plan.lives * workers,
    )
    for name, layer in LAYERS.items():
        drawn = layer(Seeded(f"sharing {name} {seed}"), drawn)
    return drawn


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
        tokens=None,
        is_fair=False,
        has_spare=False,
    )


def _fault(choices: Choices, workers: int) -> Fault:
    blow = choices.one_of(_BLOWS)
    return Fault(
        at=choices.number(1, choices.one_of((30, 60, 150))) / 10,
        worker=choices.number(0, workers - 1),
        blow=blow,
        seconds=choices.one_of((0.5, 3.0, 7.0, 11.0, 11.0, 20.0)),
    )


def _with_fences(choices: Choices, shared: SharedPlan) -> SharedPlan:
    """Operators end leases of workers that are alive."""
    if choices.number(0, 3):
        return shared
    fences = tuple(
        Fault(
            at=choices.number(5, 80) / 10,
            worker=choices.number(0, shared.workers - 1),
            blow=Blow.FENCED,
            seconds=choices.one_of((0.5, 3.0, 11.0)),
        )
        for _ in range(choices.one_of((1, 1, 2)))
    )
    return replace(shared, faults=tuple(sorted((*shared.faults, *fences), key=_at)))


def _with_own_providers(choices: Choices, shared: SharedPlan) -> SharedPlan:
    """Each worker lacks some of the added providers, so that others wait for one that is away."""
    added = [each for each in shared.plan.weights if each not in CHANNELS]
    if not added or choices.number(0, 1):
        return shared
    lives = tuple(
        replace(life, removed=tuple(each for each in added if choices.number(0, 1))) for life in shared.lives
    )
    return replace(shared, lives=lives)


def _with_orders(choices: Choices, shared: SharedPlan) -> SharedPlan:
    """Operators decide about what lies aside, at a worker or by a command."""
    if choices.number(0, 2) == 0:
        return shared
    return replace(shared, commands=tuple(_command(choices) for _ in range(choices.one_of((1, 2, 2, 3, 5)))))


def _command(choices: Choices) -> Command:
    verb, kind = choices.one_of((*ERRANDS, *((verb, ItemKind.MESSAGE) for verb in VERBS)))
    errand = Errand(0, choices.number(5, choices.one_of((60, 200))) / 10, verb, kind)
    return Command(errand, choices.one_of((None, None, None, 0.0, 0.02, 0.1)))


def _with_halts(choices: Choices, shared: SharedPlan) -> SharedPlan:
    """Operators pause something and resume it."""
    if choices.number(0, 3):
        return shared
    ends_by_itself = not any(shared.skews) and not shared.plan.jumps and choices.number(0, 2) == 0
    halts = [halt(choices, shared.plan, ends_by_itself) for _ in range(choices.one_of((1, 1, 2)))]
    halts = [replace(each, seconds=min(each.seconds, LONGEST)) for each in halts]
    each_once = {(each.kind, each.key): each for each in halts}
    return replace(shared, plan=replace(shared.plan, halts=tuple(each_once.values())))


def _with_retention(choices: Choices, shared: SharedPlan) -> SharedPlan:
    """What ended is forgotten during the run, and some of it is handed out again then, to any worker.

    No clock is ahead, since what it forgot would be missed.
    """
    if choices.number(0, 3):
        return shared
    back = tuple(jump for jump in shared.plan.jumps if jump.seconds < 0)
    messages = tuple(
        replace(message, again=(*message.again, LATE)) if choices.number(0, 2) == 0 else message
        for message in shared.plan.messages
    )
    return replace(
        shared,
        plan=replace(shared.plan, malformed=(), jumps=back, messages=messages),
        skews=tuple(min(skew, 0.0) for skew in shared.skews),
        retention=Retention(
            seconds=choices.one_of((9.0, 9.0, 12.0, 15.0)), pruned_every=choices.one_of((0.5, 2.0))
        ),
    )


LAYERS: Mapping[str, Callable[[Choices, SharedPlan], SharedPlan]] = {
    "fences": _with_fences,
    "providers": _with_own_providers,
    "orders": _with_orders,
    "halts": _with_halts,
    "retention": _with_retention,
}
"""What is added to some of the plans, each by choices of its own."""


def _at(fault: Fault) -> float:
    return fault.at
