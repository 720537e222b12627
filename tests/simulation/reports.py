"""Providers' reports on their way to the worker's room of receipts, again until they are answered."""

from __future__ import annotations

import json
from itertools import count
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from deliveryd.receipts.app import Receipts
from deliveryd.receipts.request import ReceiptRequest
from simulation.expectation import address_of
from simulation.ledger import KEPT_FOR_LATER, UNHEARD, Change, Reported, channel_served_by
from simulation.plan import Named, OptOut
from simulation.providers import Sent
from simulation.service import iso
from simulation.world import START, World

AGAIN = 1.0


class Due(NamedTuple):
    """A report that is to be made at a second of the run."""

    number: int
    at: float
    provider: str
    provider_id: str
    status: str
    answer_lost: bool
    names: Named
    reference: str | None


class Reports:
    """Holds what is still to be reported, through all lives of the worker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._due: dict[int, Due] = {}
        self._opt_outs = dict(enumerate(world.plan.opt_outs))
        self._numbers = count()
        self._tasks: TaskGroup | None = None
        self._receipts: Receipts | None = None
        self._done = anyio.Event()

    @property
    def waiting(self) -> int:
        """How many reports are still to be made."""
        return len(self._due) + len(self._opt_outs)

    def expect(self, sent: Sent) -> None:
        """A provider took a message, and will report."""
        for report in sent.reports:
            for copy in range(report.copies):
                at = anyio.current_time() + report.delay + copy * 0.3 + self._slowness_of(sent.provider)
                due = Due(
                    next(self._numbers),
                    at,
                    sent.provider,
                    sent.provider_id,
                    report.status,
                    report.answer_lost,
                    report.names,
                    _reference(sent, report.names),
                )
                self._begin(due)

    def _slowness_of(self, provider: str) -> float:
        """How much later than others a provider delivers what it takes now."""
        slowness = self._world.plan.slowness
        is_slow = slowness is not None and provider in slowness.providers
        return slowness.seconds if slowness and is_slow and anyio.current_time() >= slowness.at else 0.0

    def begin(self, receipts: Receipts, tasks: TaskGroup) -> None:
        """A worker lives: report to its room of receipts."""
        self._receipts = receipts
        self._tasks = tasks
        for due in self._due.values():
            tasks.start_soon(self._make, due)
        for number in self._opt_outs:
            tasks.start_soon(self._tell, number, self._opt_outs[number].at)

    def end(self) -> None:
        """The worker's life is over."""
        self._tasks = None
        self._receipts = None

    async def all_made(self) -> None:
        """Wait until nothing is to be reported."""
        while self._due:
            await self._done.wait()

    def _begin(self, due: Due) -> None:
        self._due[due.number] = due
        if self._tasks is not None:
            self._tasks.start_soon(self._make, due)

    async def _make(self, due: Due) -> None:
        await anyio.sleep_until(due.at)
        if due.answer_lost:
            await self._post(due, self._receipts)
        if await self._post(due, self._receipts):
            del self._due[due.number]
            self._done.set()
            self._done = anyio.Event()
        else:
            self._begin(due._replace(at=anyio.current_time() + AGAIN, answer_lost=False))

    async def _tell(self, number: int, at: float) -> None:
        """Report what a customer decided, until the worker answers that it has it."""
        await anyio.sleep_until(at)
        if await self._post_opt_out(self._opt_outs[number], self._receipts):
            del self._opt_outs[number]
        elif self._tasks is not None:
            self._tasks.start_soon(self._tell, number, anyio.current_time() + AGAIN)

    async def _post_opt_out(self, opt_out: OptOut, receipts: Receipts | None) -> bool:
        world, ledger = self._world, self._world.ledger
        channel = channel_served_by(opt_out.provider)
        address = address_of(world.plan.people[opt_out.customer_id], channel)
        if address is None or opt_out.provider not in world.providers or receipts is None:
            return True
        report = {
            "status": "stopped" if opt_out.stopped else "resumed",
            "recipient": address,
            "at": iso(world.wall.at(anyio.current_time())),
        }
        begun, known = ledger.number(), None
        request = ReceiptRequest(
            "POST", f"/receipts/{opt_out.provider}", b"", [], json.dumps(report).encode()
        )
        try:
            reply = await receipts.take_in(opt_out.provider, request)
            known = ledger.number() if reply.status < 300 else None
        finally:
            now = anyio.current_time()
            ledger.changes.append(Change(begun, channel, address, opt_out.stopped, known, now))
        return known is not None

    async def _post(self, due: Due, receipts: Receipts | None) -> bool:
        """Report; tell whether the worker answered that it has it, or never will."""
        if receipts is None or due.provider not in self._world.providers:
            return due.provider not in self._world.providers
        is_honest = self._world.plan.slowness is not None
        reported_at = iso(self._world.wall.at(anyio.current_time()) if is_honest else START + due.number)
        report = {"id": due.provider_id, "status": due.status, "at": reported_at}
        if due.reference is not None:
            report["reference"] = due.reference
        body = json.dumps(report).encode()
        status = UNHEARD
        begun = self._world.ledger.number()
        try:
            request = ReceiptRequest("POST", f"/receipts/{due.provider}", b"", [], body)
            reply = await receipts.take_in(due.provider, request)
            status = KEPT_FOR_LATER if "unmatched" in reply.results else reply.status
        finally:
            self._note(due, begun, reported_at, status, self._life_with(receipts))
        return status < 300

    def _life_with(self, _receipts: Receipts) -> int:
        """The life of the worker that has these."""
        return self._world.life

    def _note(self, due: Due, begun: int, reported_at: str, status: int, life: int) -> None:
        ledger = self._world.ledger
        report = due.provider_id, due.status, reported_at, status, due.names
        ledger.reported.append(Reported(ledger.number(), begun, *report, life, anyio.current_time()))


def _reference(sent: Sent, names: Named) -> str | None:
    return {Named.NOTHING: None, Named.KEY: sent.key, Named.MESSAGE: str(sent.message_id)}[names]
