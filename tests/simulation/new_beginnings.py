"""Operators who have failed messages begin anew, or forget messages that the queue then gives again."""

from __future__ import annotations

from dataclasses import replace

from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.reader import read_found
from deliveryd.journal.selection import Selection
from deliveryd.states import ENDED, State
from simulation.choosing import Choices
from simulation.plan import Errand, Plan
from simulation.world import World

BEGINS = frozenset({Action.BEGIN_ANEW, Action.BEGIN_ANEW_ANYWAY})
FORGETS = frozenset({Action.FORGET, Action.FORGET_ANYWAY})

VERBS = (
    Action.BEGIN_ANEW,
    Action.BEGIN_ANEW,
    Action.BEGIN_ANEW_ANYWAY,
    Action.FORGET,
    Action.FORGET,
    Action.FORGET_ANYWAY,
)
"""What such operators order, by how often."""


def with_new_beginnings(choices: Choices, plan: Plan) -> Plan:
    """A third of the plans, with such operators in some of their lives."""
    if plan.is_fair or plan.has_spare or choices.number(0, 2):
        return plan
    errands = tuple(_errand(choices, len(plan.lives)) for _ in range(choices.number(1, 4)))
    return replace(plan, errands=(*plan.errands, *errands))


def _errand(choices: Choices, lives: int) -> Errand:
    return Errand(
        life=choices.number(0, lives),
        after=choices.one_of((None, 0.5, 2.0, 4.0, 8.0, 16.0)),
        verb=choices.one_of(VERBS),
        kind=ItemKind.MESSAGE,
    )


def ids_for(world: World, verb: Action) -> list[int]:
    """The messages that such an order is about: all that failed, or all that ended."""
    states = (State.FAILED,) if verb in BEGINS else tuple(ENDED)
    return [found.id for found in read_found(world.kept.reader(), Selection(states=states))]


def note_forgotten(world: World, verb: Action, done: tuple[str, ...]) -> None:
    """The queue gives again what was forgotten."""
    if verb in FORGETS:
        world.forgotten += map(int, done)
