"""Runs a plan: one life of the worker after the other, until there is nothing more to do."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple
from unittest.mock import patch

import anyio
import trio
from trio.testing import MockClock

from deliveryd import pipeline
from deliveryd.journal.schema import prepare
from simulation.ledger import Ledger
from simulation.plan import Life, Plan
from simulation.providers import Providers
from simulation.reports import Reports
from simulation.service import Service
from simulation.worker import Worker
from simulation.world import World

PATIENCE = 1200.0
"""Seconds of virtual time after which a run has to be over."""

MORE_LIVES = 6
IDLE_CHECK = 0.5
"""Seconds between looks whether a worker is idle: fewer turns of its loops are more plans in a minute."""

DRAIN = 20.0
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it


class Row(NamedTuple):
    """A message in the journal at the end; `state` is the name that the table of states gives it."""

    id: int
    state: int
    lane: str
    provider_id: str | None


class History(NamedTuple):
    """What came of a plan."""

    plan: Plan
    ledger: Ledger
    lives: tuple[Life, ...]
    rows: dict[int, Row]
    past: frozenset[int]


_ROWS = """
SELECT id, state, lane, (SELECT provider_id FROM attempt WHERE message_id = id AND number = attempts)
FROM message
"""


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder for one run, in memory where there is such a place."""
    folder = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None, prefix="deliveryd-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@lru_cache(maxsize=1)
def _empty_journal() -> bytes:
    """A journal that no worker has used yet: making it anew would take a tenth of each run."""
    with work_folder() as folder:
        path = folder / "journal.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            prepare(db)
        return path.read_bytes()


def run_plan(plan: Plan) -> History:
    """Live through a plan."""
    random.seed(plan.seed)
    trio._core._run._r.seed(plan.seed)
    with work_folder() as folder, patch.object(pipeline, "IDLE_CHECK", IDLE_CHECK):
        (folder / "journal.db").write_bytes(_empty_journal())
        return trio.run(_live, plan, folder, clock=MockClock(autojump_threshold=0))


async def _live(plan: Plan, folder: Path) -> History:
    world = World(plan, folder)
    service = Service(world)
    reports = Reports(world)
    providers = Providers(world, reports.expect)
    lives: list[Life] = []
    try:
        with anyio.move_on_after(PATIENCE) as patience:
            for life in plan.lives:
                lives.append(life)
                await _one_life(world, life, service, providers, reports)
            last = replace(plan.lives[-1], end=None)
            while len(lives) == len(plan.lives) or (
                (service.queue or reports.waiting) and len(lives) < len(plan.lives) + MORE_LIVES
            ):
                lives.append(last)
                await _one_life(world, last, service, providers, reports)
        if patience.cancelled_caught:
            world.ledger.complaints.append(f"still not idle after {PATIENCE:g} seconds")
            world.ledger.crashed.add(world.life)
        rows = {row.id: row for row in (Row(*row) for row in world.ask_journal(_ROWS))}  # type: ignore[arg-type]
        past = frozenset(int(str(id_)) for (id_,) in world.ask_journal("SELECT id FROM past"))
        return History(plan, world.ledger, tuple(lives), rows, past)
    finally:
        world.close()


async def _one_life(
    world: World, life: Life, service: Service, providers: Providers, reports: Reports
) -> None:
    ledger = world.ledger
    worker = Worker(world, life, service, providers, reports)
    try:
        with anyio.CancelScope() as scope:
            world.begin(life, scope.cancel)
            await worker.run(until_idle=True)
    except Exception as error:  # whatever it is, no worker may die of it
        ledger.complaints.append(f"the worker died: {_causes(error)}")
        ledger.crashed.add(world.life)
    if worker.stopped_at is not None and anyio.current_time() - worker.stopped_at >= DRAIN:
        ledger.crashed.add(world.life)
    _hand_out_lost(world, service)


def _causes(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_causes(inner) for inner in error.exceptions)
    return repr(error)


def _hand_out_lost(world: World, service: Service) -> None:
    """What a worker took and didn't record: handed out again after a crash, after anything else a loss."""
    known = {id_ for (id_,) in world.ask_journal("SELECT id FROM message UNION SELECT id FROM past")}
    raws = {raw for (raw,) in world.ask_journal("SELECT raw FROM malformed")}
    lost = [
        handed.raw
        for handed in world.ledger.handed
        if handed.life == world.life
        and handed.id not in known
        and handed.raw not in raws
        and handed.raw not in service.queue
    ]
    if not lost:
        return
    if world.life in world.ledger.crashed:
        service.hand_out_again(dict.fromkeys(lost))
    else:
        world.ledger.complaints.append(f"{len(lost)} messages were taken from the queue and lost at a stop")
