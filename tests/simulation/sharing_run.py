"""Runs a plan of several workers on one journal, until there is nothing more to do for any of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import anyio
import trio

from deliveryd import model
from deliveryd.delivery import intake
from deliveryd.model import SECOND
from deliveryd.rules import budgets
from deliveryd.worker import supervisor
from simulation.kept import KeptJournal
from simulation.kept_in_database import LEASE, DatabaseJournal
from simulation.machines import Machine, Stage, wait_while_awake
from simulation.plan import HOUR, Plan
from simulation.providers import Providers
from simulation.run import History
from simulation.service import Service
from simulation.sharing_counts import counted_in
from simulation.sharing_orders import Control, SharedOperators, SharedPausers
from simulation.sharing_plan import Retention, SharedPlan
from simulation.sharing_reports import SharedReports
from simulation.start import made_ready
from simulation.statements import statement_by_statement
from simulation.worker import StandIns
from simulation.world import World
from support.endless import endless_loops_ended, jumping_clock

PATIENCE = 400.0
"""Seconds of virtual time after which a run has to be over, and for each fault a lease more.

What waits is counted anew within five minutes where a worker stood still while it counted.
"""


def run_shared(shared: SharedPlan, server: str) -> History:
    """Live through a plan, in a database of a server by its URL."""

    def keep(plan: Plan, _folder: Path) -> KeptJournal:
        return DatabaseJournal(server, plan)

    with (
        _pruned_often(shared.retention),
        made_ready(shared.plan, keep) as (folder, kept),
        kept.worked_with(),
        statement_by_statement(),
        patch.object(intake, "wait_while_running", wait_while_awake),
    ):
        assert isinstance(kept, DatabaseJournal)
        random.seed(shared.plan.seed)  # what a process makes once at its first run is made by now
        trio._core._run._r.seed(shared.plan.seed)
        return trio.run(_live, shared, folder, kept, clock=jumping_clock())


async def _live(shared: SharedPlan, folder: Path, kept: DatabaseJournal) -> History:
    world = World(shared.plan, folder, kept)
    world.providers = shared.plan.weights
    with (
        patch.object(model, "time", world.wall),
        patch.object(budgets, "HOUR_LENGTH", HOUR * SECOND),
        counted_in(world.ledger),
    ):
        async with anyio.create_task_group() as tasks:
            stage = _stage(shared, world, kept, SharedReports(world, tasks))
            stage.others.operators.begin(tasks)
            stage.others.pausers.begin(tasks)
            with trio.move_on_after(_seconds_for(shared)) as patience, endless_loops_ended(patience):
                await _all_machines(stage)
            tasks.cancel_scope.cancel()
    ledger = world.ledger
    if patience.cancelled_caught:
        ledger.complaints.append(f"still not idle after {anyio.current_time():g} seconds")
        ledger.crashed.update(range(len(world.lives)))
    ledger.seconds = anyio.current_time()
    ledger.statements, ledger.blocked = stage.server.statements, stage.server.blocked
    audited = kept.audit()
    ledger.complaints += audited.complaints
    ledger.batches_lost = audited.batches_lost
    return History(
        shared.plan, ledger, tuple(world.lives), kept.rows(), kept.pruned(), kept.forgotten(),
        is_shared=True,
        retention=None if shared.retention is None else shared.retention.seconds,
        skew=int(max(map(abs, shared.skews)) * SECOND),
    )  # fmt: skip


@contextmanager
def _pruned_often(retention: Retention | None) -> Iterator[None]:
    """While it lasts, what is old is looked for as often as a plan says."""
    if retention is None:
        yield
        return
    with patch.object(supervisor, "PRUNE_INTERVAL", retention.pruned_every):
        yield


def _seconds_for(shared: SharedPlan) -> float:
    return PATIENCE + LEASE * len(shared.faults)


def _stage(shared: SharedPlan, world: World, kept: DatabaseJournal, reports: SharedReports) -> Stage:
    providers = Providers(world, reports.expect)
    server = kept.server(shared.sql)
    control = Control(world, kept, server)
    operators, pausers = SharedOperators(world, shared, control), SharedPausers(world, control)
    others = StandIns(Service(world), providers, reports, operators, pausers)
    stage = Stage(shared, world, kept, server, others, reports, control, len(shared.faults))
    stage.machines = [Machine(stage, number) for number in range(shared.workers)]
    return stage


async def _all_machines(stage: Stage) -> None:
    async with anyio.create_task_group() as machines:
        for fault in stage.shared.faults:
            machines.start_soon(stage.machines[fault.worker].suffer, fault)
        for machine in stage.machines:
            machines.start_soon(machine.run)
