"""Providers' reports where several workers take them in: each comes to any of them, in any order."""

from __future__ import annotations

from random import Random

import anyio
from anyio.abc import TaskGroup

from deliveryd.receipts.app import Receipts
from simulation.reports import AGAIN, Due, Reports
from simulation.world import World


class SharedReports(Reports):
    """Reports to whichever worker lives, chosen by the seed."""

    def __init__(self, world: World, tasks: TaskGroup) -> None:
        super().__init__(world)
        self._stage = tasks
        self._rooms: dict[int, tuple[Receipts, TaskGroup]] = {}
        self._lives: dict[int, int] = {}
        self._random = Random(f"reports {world.plan.seed}")
        for number in self._opt_outs:
            tasks.start_soon(self._tell_again, number)

    def open(self, worker: int, life: int, receipts: Receipts, tasks: TaskGroup) -> None:
        """A worker lives: report to its room of receipts, too."""
        self._rooms[worker] = receipts, tasks
        self._lives[id(receipts)] = life

    def shut(self, worker: int) -> None:
        """The worker's life is over."""
        self._rooms.pop(worker, None)

    def _life_with(self, receipts: Receipts) -> int:
        return self._lives[id(receipts)]

    def _begin(self, due: Due) -> None:
        self._due[due.number] = due
        self._stage.start_soon(self._send, due)

    async def _send(self, due: Due) -> None:
        await anyio.sleep_until(due.at)
        receipts, tasks = await self._room()
        tasks.start_soon(self._make_once, due, receipts)

    async def _room(self) -> tuple[Receipts, TaskGroup]:
        """Choose a worker to report to; wait until there is one."""
        while not self._rooms:  # noqa: ASYNC110 - in virtual time
            await anyio.sleep(AGAIN)
        return self._rooms[self._random.choice(sorted(self._rooms))]

    async def _make_once(self, due: Due, receipts: Receipts) -> None:
        """Within the worker's life: with that, the report ends unheard, and comes to another one later."""
        is_done = False
        try:
            if due.answer_lost:
                await self._post(due, receipts)
            is_done = await self._post(due, receipts)
        finally:
            if is_done:
                del self._due[due.number]
            else:
                self._begin(due._replace(at=anyio.current_time() + AGAIN, answer_lost=False))

    async def _tell_again(self, number: int) -> None:
        await anyio.sleep_until(self._opt_outs[number].at)
        receipts, tasks = await self._room()
        tasks.start_soon(self._tell_once, number, receipts)

    async def _tell_once(self, number: int, receipts: Receipts) -> None:
        is_done = False
        try:
            is_done = await self._post_opt_out(self._opt_outs[number], receipts)
        finally:
            if is_done:
                del self._opt_outs[number]
            else:
                self._stage.start_soon(self._tell_later, number)

    async def _tell_later(self, number: int) -> None:
        await anyio.sleep(AGAIN)
        await self._tell_again(number)
