"""Runs a plan: one life of the worker after the other, until there is nothing more to do."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import anyio
import trio

from deliveryd import model
from deliveryd.model import SECOND, WallClock
from deliveryd.rules import budgets
from deliveryd.states import State
from simulation.issuing import Issuer
from simulation.kept import KeepsJournals, KeptJournal, Row
from simulation.kept_in_file import FileJournal
from simulation.ledger import Ledger
from simulation.operators import Operators
from simulation.pausing import Pausers
from simulation.plan import HOUR, Life, Plan
from simulation.providers import Providers
from simulation.reports import Reports
from simulation.service import Service, id_of
from simulation.start import made_ready
from simulation.strangers import come_to_another_service
from simulation.worker import StandIns, Worker
from simulation.world import RETENTION, World
from support.endless import endless_loops_ended, jumping_clock

PATIENCE = 1200.0
"""Seconds of virtual time after which a run has to be over."""

UNNOTICED = 5.0
LONGEST_PAUSE = 3600.0
"""Where a worker ends before it noticed that its clock was put back, what waits may wait so long."""

MORE_LIVES = 6
DRAIN = 20.0
ROUNDING = 1e-6
"""Seconds by which a difference of two instants may be wrong."""


class History(NamedTuple):
    """What came of a plan."""

    plan: Plan
    ledger: Ledger
    lives: tuple[Life, ...]
    rows: Mapping[int, Row]
    pruned: frozenset[int]
    forgotten: frozenset[int]
    """Those of which only is known how often they began."""
    is_shared: bool = False
    """Whether several workers lived at the same time."""
    retention: float | None = None
    """Seconds for which the journal kept what is over, and receipts that fitted nothing; None: for days."""
    ages_by_database: bool = False
    """Whether the database's clock says what is old, also when it is days ahead."""
    skew: int = 0
    """By how many microseconds a worker's clock is ahead, or behind, at most."""


def run_plan(plan: Plan, keep: KeepsJournals = FileJournal) -> History:
    """Live through a plan, with a journal of a kind."""
    with made_ready(plan, keep) as (folder, kept), kept.worked_with():
        random.seed(plan.seed)  # what a process makes once at its first run is made by now
        trio._core._run._r.seed(plan.seed)
        return trio.run(_live, plan, folder, kept, clock=jumping_clock())


async def _live(plan: Plan, folder: Path, kept: KeptJournal) -> History:
    world = World(plan, folder, kept)
    with patch.object(model, "time", world.wall), patch.object(budgets, "HOUR_LENGTH", HOUR * SECOND):
        return await _live_in(world)


async def _live_in(world: World) -> History:
    plan = world.plan
    if plan.tokens is not None:
        world.issuer = Issuer(world, plan.tokens)
    reports = Reports(world)
    providers = Providers(world, reports.expect)
    others = StandIns(Service(world), providers, reports, Operators(world), Pausers(world))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.kept.disk.run)
        tasks.start_soon(world.suspend)
        with trio.move_on_after(_seconds_for(plan)) as patience, endless_loops_ended(patience):
            world.patience = patience
            await _all_lives(world, others)
        tasks.cancel_scope.cancel()
    if patience.cancelled_caught:
        world.ledger.complaints.append(f"still not idle after {anyio.current_time():g} seconds")
        world.ledger.crashed.add(world.life)
    world.ledger.seconds = anyio.current_time()
    kept = world.kept
    audited = kept.audit()
    world.ledger.complaints += audited.complaints
    world.ledger.batches_lost = audited.batches_lost
    return History(
        plan,
        world.ledger,
        tuple(world.lives),
        kept.rows(),
        kept.pruned(),
        kept.forgotten(),
        ages_by_database=kept.is_shared,
    )


def _seconds_for(plan: Plan) -> float:
    return PATIENCE + sum(suspension.seconds for suspension in plan.suspensions)


async def _all_lives(world: World, others: StandIns) -> None:
    """The plan's lives, and as many more as it takes until there is nothing more to do."""
    plan = world.plan
    is_idle = False
    for life in plan.lives:
        await come_to_another_service(world, life, others)
        is_idle = await _one_life(world, life, others)
    last = replace(plan.lives[-1], end=None)
    to_come = {errand.life for errand in plan.errands}
    for number in range(len(plan.lives), len(plan.lives) + MORE_LIVES):
        is_empty = not others.service.queue and not others.reports.waiting
        if is_idle and is_empty and number not in to_come and not _has_gone_on(world):
            return
        await come_to_another_service(world, last, others)
        is_idle = await _one_life(world, last, others)


def _has_gone_on(world: World) -> bool:
    """Whether a receipt deadline passed, or a report came in, while an idle worker stopped."""
    if world.kept.has_mail():
        return True
    after = (
        {State.WAITING, State.READY} if world.plan.tuning.receipt_deadline is not None else {State.WAITING}
    )
    return any(row.state in after for row in world.kept.rows().values())


async def _one_life(world: World, life: Life, others: StandIns) -> bool:
    """Live until the life's end; tell whether there was nothing more to do."""
    ledger = world.ledger
    await world.kept.disk.reachable()
    await others.operators.decide_at_rest(world.life + 1)
    world.clock = WallClock()
    worker = Worker(world, life, others)
    try:
        with anyio.CancelScope() as scope:
            world.begin(life, scope.cancel)
            await worker.run(until_idle=True)
    except Exception as error:  # whatever it is, no worker may die of it
        if world.life not in ledger.crashed:
            ledger.complaints.append(f"the worker died: {causes(error)}")
        ledger.crashed.add(world.life)
    finally:
        world.kept.disk.detach()
    if _was_just_put_back(world):
        world.patience.deadline += LONGEST_PAUSE
    was_killed = world.life in ledger.crashed
    if worker.stopped_at is not None and anyio.current_time() - worker.stopped_at > DRAIN - ROUNDING:
        ledger.crashed.add(world.life)
    if world.life in ledger.crashed:
        ledger.crashed.update(ledger.process_of(world.life))
    is_told = worker.lost_a_batch and world.kept.disk.was_just_short  # what no disk takes can only be said
    if is_told:
        ledger.only_said.add(world.life)
    hand_out_lost(world, others.service, was_killed or is_told)
    return worker.was_idle and not was_killed  # a report may have come while an idle worker stopped


def _was_just_put_back(world: World) -> bool:
    """Whether the worker had no time to notice that its clock was put back."""
    now = anyio.current_time()
    return any(jump.seconds < 0.0 <= now - jump.at < UNNOTICED for jump in world.plan.jumps)


def causes(error: BaseException) -> str:
    """What a worker died of."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(causes(inner) for inner in error.exceptions)
    return repr(error)


def hand_out_lost(world: World, service: Service, was_killed: bool) -> None:
    """What a worker took and didn't record: handed out again after a kill, after anything else a loss."""
    kept = world.kept
    known = {*kept.rows(), *kept.pruned(), *kept.forgotten()}
    raws = kept.malformed()
    forgets = kept.is_shared and any(jump.seconds >= RETENTION for jump in world.plan.jumps)
    lost = [
        raw
        for taken in world.ledger.taken.values()
        if taken.life in world.ledger.process_of(world.life)
        for raw in taken.raws[: taken.whole]
        if id_of(raw) not in known
        and raw not in raws
        and raw not in service.queue
        and not (forgets and id_of(raw) is None)
    ]
    if not lost:
        return
    if was_killed:
        service.hand_out_again(dict.fromkeys(lost))
    else:
        world.ledger.complaints.append(f"{len(lost)} messages were taken from the queue and lost")
