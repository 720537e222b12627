"""Machines with a worker each, on one journal: what a plan does to them, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from shutil import copytree

import anyio

from deliveryd.config import Config
from deliveryd.errors import JournalUnreachable
from deliveryd.journal.postgresql.connection import longest_idle
from deliveryd.journal.postgresql.journal import SWEPT_EVERY, PostgresqlJournal
from deliveryd.journal.postgresql.lease import Fenced
from deliveryd.model import SECOND, WallClock
from deliveryd.runtime.wakeup import RUNNING_STEP, wait_while_running
from deliveryd.worker.wiring import Parts
from simulation.case import MAY_BE_FENCED
from simulation.kept_in_database import LEASE, DatabaseJournal
from simulation.ledger import Stillness
from simulation.plan import Life
from simulation.run import causes, hand_out_lost
from simulation.service import id_of
from simulation.sharing_orders import Control
from simulation.sharing_plan import Blow, Fault, SharedPlan
from simulation.sharing_reports import SharedReports
from simulation.statements import Process, Server
from simulation.worker import CACHE, IDLE_PAUSE, StandIns, Worker
from simulation.world import World

RESTART = 1.0
"""Seconds after which a process that ended is started again."""

SWEPT = 3 * SWEPT_EVERY
"""Seconds within which workers look again at receipts that fitted nothing."""


_PROCESS: ContextVar[Process] = ContextVar("the process whose task it is")


async def wait_while_awake(event: anyio.Event, seconds: float) -> None:
    """What `wait_while_running` is in a process that the stage freezes, whose event loop goes on."""
    while seconds > 0 and not event.is_set():
        await wait_while_running(event, min(seconds, RUNNING_STEP))
        await _PROCESS.get().awake()
        seconds -= RUNNING_STEP


@dataclass(slots=True)
class Stage:
    """What all machines of a run share."""

    shared: SharedPlan
    world: World
    kept: DatabaseJournal
    server: Server
    others: StandIns
    reports: SharedReports
    control: Control
    faults_to_come: int = 0
    machines: list[Machine] = field(default_factory=list)
    is_over: bool = False
    fitting_since: float | None = None
    """Since when all is at rest but for receipts that may be matched."""

    def look(self) -> bool:
        """Whether there is nothing more to do for anybody; then it is over."""
        self.is_over = self.is_over or (
            not self.faults_to_come
            and not self.reports.waiting
            and not self.others.operators.waiting
            and not self.others.pausers.waiting
            and all(machine.is_idle for machine in self.machines)
            and self.kept.is_at_rest()
            and self._is_all_taken()
            and self._is_looked_at_again()
        )
        return self.is_over

    def _is_looked_at_again(self) -> bool:
        """Whether every receipt that was kept, though its try is known by now, had time to be matched."""
        if not self.kept.has_fitting_receipts():
            return True
        self.fitting_since = self.fitting_since or anyio.current_time()
        return anyio.current_time() > self.fitting_since + SWEPT

    def _is_all_taken(self) -> bool:
        """Whether the queue has only what it can't be rid of, and no worker is about to record more."""
        queue, handed = self.others.service.queue, self._handed()
        if self.shared.retention is not None and self.others.service.gives_more:
            return False
        if not queue and not handed:
            return True
        known, malformed = {*self.kept.rows(), *self.kept.pruned()}, self.kept.malformed()
        if not handed <= known | self.kept.forgotten():
            return False
        return all(id_of(raw) in known or raw in malformed for raw in queue)

    def _handed(self) -> set[int | None]:
        """The messages that live workers were given."""
        living = {machine.world.life for machine in self.machines if machine.worker is not None}
        return {
            id_of(raw)
            for taken in self.world.ledger.taken.values()
            if taken.life in living
            for raw in taken.raws[: taken.whole]
        } - {None}


class SkewedClock(WallClock):
    """A clock that is wrong by some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._wrong = int(seconds * SECOND)

    def now(self) -> int:
        """The present instant, as this machine has it."""
        return super().now() + self._wrong


class OwnWorld(World):
    """The stage as one machine's worker has it."""

    process: Process

    async def awake(self) -> None:
        """Return when the worker's process runs."""
        await self.process.awake()


class SharingWorker(Worker):
    """A worker that others work beside."""

    def __init__(self, machine: Machine, life: Life) -> None:
        self._machine = machine
        super().__init__(machine.world, life, machine.stage.others)

    async def _stop_when_idle(self, parts: Parts) -> None:
        stage, number = self._machine.stage, self._machine.number
        assert parts.receipts is not None
        assert isinstance(parts.journal, PostgresqlJournal)
        self._machine.worker = parts.journal._lease.worker
        async with anyio.create_task_group() as tasks:
            stage.reports.open(number, self._machine.world.life, parts.receipts, tasks)
            stage.control.open(number, self._orders, tasks)
            try:
                await self._go_on(parts)
            finally:
                stage.reports.shut(number)
                stage.control.shut(number)

    def _configured(self, life: Life) -> Config:
        config, retention = super()._configured(life), self._machine.stage.shared.retention
        if retention is None:
            return config
        journal = config.journal.model_copy(update={"retention": retention.seconds})
        return config.model_copy(update={"journal": journal})

    async def _go_on(self, parts: Parts) -> None:
        machine = self._machine
        while not machine.stage.look():
            await anyio.sleep(IDLE_PAUSE)
            machine.is_idle = parts.memory.is_idle
        await parts.pipeline.until_idle()
        while self._has_deadlines():  # of a message that the queue gave once more at the end
            await anyio.sleep(IDLE_PAUSE)
            await parts.pipeline.until_idle()
        self._check_idle(parts)
        self.was_idle = True
        self.stop()

    def _check_bounds(self) -> None:
        """The bounds are each worker's own, and the journal is everybody's."""


class Machine:
    """A machine whose worker is started again and again, until the run is over."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage = stage
        self.number = number
        self.is_idle = False
        self.process = Process(stage.server, longest_idle(LEASE))
        self.world = own_world(stage.world, SkewedClock(stage.shared.skews[number]), self.process)
        self.world.folder = stage.world.folder / f"machine{number}"
        copytree(stage.world.folder / CACHE, self.world.folder / CACHE)
        self._down_for = RESTART
        self._kill: Callable[[], None] = lambda: None
        self.worker: int | None = None
        """The number of its lease."""
        self._is_fenced_by_order = False
        self._was_killed = False
        self._still_until = -LEASE
        """Up to when it may have been kept from renewing its lease for so long that others adopt."""

    async def run(self) -> None:
        """Live one life after the other."""
        _PROCESS.set(self.process)
        while not self.stage.is_over:
            await self._live(self.stage.shared.lives[self.number])
            self.is_idle = self.stage.is_over
            if not self.stage.is_over:
                await anyio.sleep(self._down_for)
                self._down_for = RESTART

    async def _live(self, life: Life) -> None:
        world, ledger = self.world, self.world.ledger
        while self.process.is_cut_off:  # noqa: ASYNC110  # a start fails meanwhile, again and again
            await anyio.sleep(RESTART)
        self.process.begin()
        self.worker, self._is_fenced_by_order, self._was_killed = None, False, False
        worker = SharingWorker(self, life)
        try:
            with anyio.CancelScope() as scope:
                world.begin(life, lambda: self._end(scope))
                self._kill = world.kill
                await worker.run(until_idle=True)
        except Exception as error:  # whatever it is, no worker may die of it, but of the fence
            ledger.crashed.add(world.life)
            if not (self._was_killed or self._is_fenced_rightly(error) or self._is_failed_start(error)):
                ledger.complaints.append(f"worker {self.number} died: {causes(error)}")
                self.stage.is_over = True
        finally:
            self._kill, self.worker = lambda: None, None
        self.process.kill()
        hand_out_lost(world, self.stage.others.service, self._was_killed)

    def _is_failed_start(self, error: BaseException) -> bool:
        """Whether the connection was lost before it had begun: it is started again."""
        return self.worker is None and isinstance(error, JournalUnreachable)

    def _is_fenced_rightly(self, error: BaseException) -> bool:
        """Whether it died as others took over, after it had stood still."""
        fenced = isinstance(error, Fenced) or (
            isinstance(error, BaseExceptionGroup) and all(map(self._is_fenced_rightly, error.exceptions))
        )
        still = anyio.current_time() <= self._still_until + LEASE
        return fenced and (still or self._is_fenced_by_order)

    def _end(self, scope: anyio.CancelScope) -> None:
        self.world.ledger.crashed.add(self.world.life)
        self._was_killed = True
        self.process.kill()
        scope.cancel()

    async def suffer(self, fault: Fault) -> None:
        """Let something happen to it, at its time."""
        await anyio.sleep_until(fault.at)
        match fault.blow:
            case Blow.KILLED:
                self._down_for = fault.seconds
                self._kill()
            case Blow.STOPPED:
                self._down_for = fault.seconds
                self.world.stop()
            case Blow.FENCED:
                self._down_for = fault.seconds
                await self._fenced()
            case Blow.FROZEN:
                self.process.freeze(fault.seconds)
                now, ledger = anyio.current_time(), self.world.ledger
                ledger.stood_still.append(Stillness(self.world.life, now, now + fault.seconds))
                self._note_still(fault.seconds)
            case Blow.CUT_OFF:
                self.process.cut_off()
                now = anyio.current_time()
                self.world.ledger.cut_off.append(Stillness(self.world.life, now, now + fault.seconds))
                self._note_still(fault.seconds)
                await anyio.sleep(fault.seconds)
                self.process.is_cut_off = False
            case Blow.CUT_AFTER_COMMIT:
                self.process.cuts += 1
        self.stage.faults_to_come -= 1

    async def _fenced(self) -> None:
        if self.worker is not None:
            self._is_fenced_by_order = True
            await self.stage.control.fence(self.worker)

    def _note_still(self, seconds: float) -> None:
        if seconds >= MAY_BE_FENCED:
            self._still_until = max(self._still_until, anyio.current_time() + seconds)


def own_world(world: World, clock: WallClock, process: Process) -> World:
    """The stage for one machine."""
    own = world.for_worker(clock)
    own.__class__ = OwnWorld
    assert isinstance(own, OwnWorld)
    own.process = process
    own.blocking = process
    own.stop = lambda: None
    return own
