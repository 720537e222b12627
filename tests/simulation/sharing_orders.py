"""Operators where several workers share a journal: orders at a worker, or by a command of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

import anyio
from anyio.abc import TaskGroup

from deliveryd.control.handlers import OrderHandler
from deliveryd.delivery.passed_time import at_next_start
from deliveryd.errors import JournalError
from deliveryd.journal.orders import Action, Order
from deliveryd.journal.postgresql.connection import longest_idle
from deliveryd.journal.postgresql.workers import By, Workers
from simulation.kept_in_database import LEASE, DatabaseJournal
from simulation.new_beginnings import note_forgotten
from simulation.operators import Operators
from simulation.pausing import Pausers
from simulation.plan import Halt
from simulation.run import causes
from simulation.sharing_plan import Command, SharedPlan
from simulation.statements import Process, Server
from simulation.world import World

Done = tuple[str, ...]


class Control:
    """Where operators give orders: at any worker that lives, else by a command, which is a process too."""

    def __init__(self, world: World, kept: DatabaseJournal, server: Server) -> None:
        self._world = world
        self._kept = kept
        self._server = server
        self._workers: dict[int, tuple[OrderHandler, TaskGroup]] = {}
        self._random = Random(f"orders {world.plan.seed}")

    def open(self, worker: int, orders: OrderHandler, tasks: TaskGroup) -> None:
        """A worker lives: it takes orders."""
        self._workers[worker] = orders, tasks

    def shut(self, worker: int) -> None:
        """The worker's life is over."""
        self._workers.pop(worker, None)

    async def give(self, order: Order, cut: float | None = None) -> Done | None:
        """Give an order; return what it was carried out for, None: nobody knows.

        `cut`: seconds after which the command is killed, if it is one.
        """
        workers = sorted(self._workers)
        if workers and cut is None and self._random.choice((True, False)):
            return await self._at_a_worker(order, self._random.choice(workers))
        found: list[Done] = []
        await self._in_a_process(partial(self._carried_out, order, found), cut)
        return found[0] if found else None

    async def fence(self, worker: int) -> None:
        """End a worker's lease by `workers fence`."""

        async def fence(process: Process) -> None:
            workers = Workers(self._kept.place)
            listed = await process(workers.list)
            for record in (each for each in listed if each.id == worker):
                at, by = self._world.clock.now(), By(None, None, "a plan")
                if await process(partial(workers.fence, record, at, by)):
                    self._world.ledger.fence_orders += 1

        await self._in_a_process(fence, None)

    async def _at_a_worker(self, order: Order, number: int) -> Done | None:
        orders, tasks = self._workers[number]
        found: list[Mapping[str, object]] = []
        is_over = anyio.Event()

        async def carry_out() -> None:
            """Within the worker's life."""
            try:
                found.append(await orders.carry_out(order, "operator"))
            except JournalError:
                pass
            finally:
                is_over.set()

        tasks.start_soon(carry_out)
        await is_over.wait()
        done = found[0]["done"] if found else None
        return tuple(map(str, done)) if isinstance(done, list) else None

    async def _carried_out(self, order: Order, found: list[Done], process: Process) -> None:
        async with self._kept.opened(process) as journal:
            clock = self._world.clock
            at = await at_next_start(journal, clock) if order.verb is Action.PAUSE else clock.now()
            providers = list(self._world.plan.weights)
            found.append((await journal.decide(order, at, providers)).done)

    async def _in_a_process(self, work: Callable[[Process], object], cut: float | None) -> None:
        process = Process(self._server, longest_idle(LEASE))
        try:
            async with anyio.create_task_group() as tasks:
                if cut is not None:
                    tasks.start_soon(_killed_after, cut, process, tasks)
                await work(process)  # type: ignore[misc]
                tasks.cancel_scope.cancel()
        except Exception as error:  # an order may fail, but by nothing else
            if not _is_of_the_journal(error):
                self._world.ledger.complaints.append(f"a command died: {causes(error)}")
        finally:
            process.kill()


class SharedOperators(Operators):
    """Run their errands at their times."""

    def __init__(self, world: World, shared: SharedPlan, control: Control) -> None:
        super().__init__(world)
        self._control = control
        self._commands = shared.commands
        self.waiting = len(shared.commands)

    def begin(self, tasks: TaskGroup) -> None:
        """The run begins."""
        for command in self._commands:
            tasks.start_soon(self._come, command)

    async def _come(self, command: Command) -> None:
        assert command.errand.after is not None
        await anyio.sleep_until(command.errand.after)
        begun = self._world.ledger.number()
        order = self._order(command.errand)
        if order is not None:
            done = await self._control.give(order, command.cut)
            if done is not None:
                note_forgotten(self._world, order.verb, done)
            self._note_changes(order, begun, is_carried_out=done is not None)
        self.waiting -= 1


class SharedPausers(Pausers):
    """Give the orders to pause and to resume wherever they find somebody."""

    def __init__(self, world: World, control: Control) -> None:
        super().__init__(world)
        self._control = control

    async def _ask(self, verb: Action, halt: Halt, seconds: float | None) -> bool | None:
        order = Order(verb, halt.kind, (halt.key,), reason="a plan", lasts=seconds)
        done = await self._control.give(order)
        return None if done is None else bool(done)


async def _killed_after(seconds: float, process: Process, tasks: TaskGroup) -> None:
    await anyio.sleep(seconds)
    process.kill()
    tasks.cancel_scope.cancel()


def _is_of_the_journal(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_of_the_journal, error.exceptions))
    return isinstance(error, JournalError)
