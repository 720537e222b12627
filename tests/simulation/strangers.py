"""Another service's worker on the journal of a run, and a service that moves to another address."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from deliveryd.errors import JournalUnusable
from deliveryd.journal.opening import JournalTerms
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.service_adoption import adopt_service
from deliveryd.worker.caches import open_cache
from simulation.choosing import Choices
from simulation.plan import Life, Plan

if TYPE_CHECKING:
    from simulation.worker import StandIns
    from simulation.world import World

STRANGE, MOVED = "http://strange", "http://moved"


def with_strangers(choices: Choices, plan: Plan) -> Plan:
    """In one plan of six another service's worker comes between two lives, or the service moves."""
    if choices.number(0, 5) or plan.reloads:
        return plan
    life = choices.number(1, len(plan.lives))
    moved = choices.one_of((None, None, choices.number(1, len(plan.lives))))
    return replace(plan, strangers=(life,), moved=moved)


async def come_to_another_service(world: World, life: Life, others: StandIns) -> None:
    """Do what the plan says before the next life."""
    number = len(world.lives)
    if number == world.plan.moved:
        await _move(world)
    if number in world.plan.strangers:
        await _come(world, life)


async def _move(world: World) -> None:
    """As an operator does it: no worker may have the journal, and the lease of a dead one is ended first."""
    await world.kept.disk.reachable()
    world.kept.end_leases(world.clock.now())
    world.base_url = MOVED
    adopt_service(world.kept.place, Order(Action.ADOPT, ItemKind.SERVICE, (MOVED,)), world.clock.now())


async def _come(world: World, life: Life) -> None:
    """A worker of another service starts with this journal, and with this cache: it must see neither."""
    from simulation.worker import configure  # noqa: PLC0415  # which has what draws plans

    await world.kept.disk.reachable()
    config = configure(life, world.plan, world.folder, STRANGE)
    problems: list[str] = []
    cache = open_cache(config, world.blocking, problems.append)
    if names := await cache.names():
        world.ledger.complaints.append(f"another service finds in the cache: {names}")
    await cache.aclose()
    terms = JournalTerms(service=config.service.address)
    with suppress(JournalUnusable):
        async with world.kept.joined(terms, world.blocking):
            world.ledger.complaints.append("another service's worker has the journal")
