"""A provider whose deliveries take long, on the whole line in virtual time: what it is sent meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt
from deliveryd.model import Receipt
from support.logs import log_lines
from support.messages import message
from support.two_providers import A, B, Provider, sent_by, world_of_two
from support.virtual import START, SteppingClock, VirtualSupervisor, VirtualWorld, live

HOUR = 3600
RECEIPT = 'provider_id = "/id"\nreceipt = { provider_id = "/id", status = "/status", delivered = ["d"] }\n'
EVERY = 2.0
"""Seconds between two messages."""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """Two providers that report deliveries, half of the messages each."""
    world = world_of_two(tmp_path)
    text = world.path.read_text().replace(
        "[channels.sms.providers.a]", '[channels.sms]\nslow_after = "30s"\n\n[channels.sms.providers.a]'
    )
    text = text.replace("weight = 80", "weight = 20")
    for name in ("a", "b"):
        table = f"[channels.sms.providers.{name}]\n"
        text = text.replace(table, table + RECEIPT)
    world.path.write_text(text.replace('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"'))
    return world


class Reporting(Provider):
    """A provider that reports a delivery so many seconds after it took the message; None: never."""

    def __init__(self, took: float | None) -> None:
        super().__init__()
        self.took = took
        self.verdict = lambda dispatch: Accepted(dispatch.key)


class Customers:
    """Has a message sent every two seconds, and the providers report."""

    def __init__(self, world: VirtualWorld, worker: VirtualSupervisor) -> None:
        self._world, self._worker = world, worker
        self._clock = world.clock
        self.count = 0
        self._reported = {A: 0, B: 0}

    async def go_on(self, minutes: float) -> float:
        """Go on for some minutes; the part of the messages of the last ten that went to a."""
        begun = {name: len(sent_by(self._world, name)) for name in (A, B)}
        end = trio.current_time() + 60 * minutes
        while trio.current_time() < end:
            if trio.current_time() < end - 600:
                begun = {name: len(sent_by(self._world, name)) for name in (A, B)}
            self.count += 1
            self._world.service.enqueue(message(self.count))
            await trio.sleep(EVERY)
            await self._report()
        sent = {name: len(sent_by(self._world, name)) - begun[name] for name in (A, B)}
        return sent[A] / sum(sent.values())

    async def _report(self) -> None:
        now = self._clock.now()
        for name in (A, B):
            provider = self._world.channels[name]
            assert isinstance(provider, Reporting)
            if provider.took is None:
                continue
            for at, dispatch in provider.attempts[self._reported[name] :]:
                if at + provider.took > trio.current_time():
                    break
                self._reported[name] += 1
                await self._worker.parts.recorder.receive([Receipt(name, dispatch.key, True, "d", now, now)])


def shown(worker: VirtualSupervisor) -> dict[str, float | None]:
    return {each.identity: each.share for each in worker.health.overview().providers}


def test_a_slow_provider_loses_its_share_and_gets_it_back(world: VirtualWorld) -> None:
    """A tenth at a time; each message is sent once, and what was moved is on the page and in the log."""
    world.channels[A], world.channels[B] = Reporting(60.0), Reporting(3.0)

    async def run() -> None:
        async with world.at_work() as worker:
            await worker.opened.wait()
            customers = Customers(world, worker)
            await customers.go_on(22)
            assert shown(worker) == {A: pytest.approx(0.6), B: 1.0}
            assert 0 < await customers.go_on(40) < 0.15
            world.channels[A].took = 3.0  # type: ignore[attr-defined]
            await customers.go_on(70)
            assert shown(worker) == {A: 1.0, B: 1.0}
            levels = worker.health.levels()
            assert levels.shares == {A: 1.0, B: 1.0}
        sent = [dispatch.entry.id for name in (A, B) for _, dispatch in sent_by(world, name)]
        assert len(sent) == len(set(sent)) == customers.count

    with log_lines("info") as lines:
        live(run)
    moved = [line for line in lines() if line["event"] == "channel.slow"]
    assert moved
    assert {line["provider"] for line in moved} == {A}


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["forward", "back"])
def test_a_step_of_the_clock_makes_no_delivery_slow(world: VirtualWorld, ahead: int) -> None:
    """Nor quick: deliveries between whose sending and report the clock is set take as long as they do."""
    world.clock = SteppingClock()
    world.channels[A], world.channels[B] = Reporting(10.0), Reporting(3.0)

    async def run() -> None:
        async with world.at_work() as worker:
            await worker.opened.wait()
            customers = Customers(world, worker)
            for step in range(1, 12):
                await customers.go_on(1)
                world.clock.ahead = ahead * 1_000_000 * (step % 2)  # type: ignore[attr-defined]
            assert shown(worker) == {A: 1.0, B: 1.0}
            world.channels[A].took = 60.0  # type: ignore[attr-defined]
            for step in range(1, 12):
                await customers.go_on(1)
                world.clock.ahead = ahead * 1_000_000 * (step % 2)  # type: ignore[attr-defined]
            assert (shown(worker)[A] or 1.0) < 1.0

    live(run)


def test_a_dated_report_counts_by_its_time_and_one_from_before_the_sending_as_nothing(
    world: VirtualWorld,
) -> None:
    """However late a report arrives, and whatever the provider's clock shows."""
    world.channels[A], world.channels[B] = Reporting(None), Reporting(None)
    for name in (A, B):
        world.channels[name].seconds = 0.0

    async def run() -> None:
        async with world.at_work() as worker:
            await worker.opened.wait()
            world.service.enqueue(*(message(id_) for id_ in range(1, 201)))
            await trio.sleep(100)
            now = world.clock.now()
            receive = worker.parts.recorder.receive
            for name, reported_at in ((A, START - HOUR * 1_000_000), (B, now - 90 * 1_000_000)):
                for _, dispatch in sent_by(world, name):
                    await receive([Receipt(name, dispatch.key, True, "d", reported_at, now)])
            took = {name: worker.parts.metrics.deliveries(name) for name in (A, B)}
            assert took[A].total == 0.0
            assert took[A].counts[0] == len(sent_by(world, A))
            assert sum(took[B].counts[:5]) == len(sent_by(world, B))
            assert 0 < took[B].total / len(sent_by(world, B)) < 15

    live(run)


def test_what_may_have_arrived_stays_with_a_slow_provider(world: VirtualWorld) -> None:
    """A message in doubt is repeated where it was sent, under the same key."""
    world.channels[A], world.channels[B] = Reporting(60.0), Reporting(3.0)
    doubtful = set(range(10_001, 10_041))
    tries: dict[int, int] = {}

    def verdict(dispatch: Dispatch) -> Accepted | InDoubt:
        tries[dispatch.entry.id] = tries.get(dispatch.entry.id, 0) + 1
        if dispatch.entry.id in doubtful and tries[dispatch.entry.id] < 3:
            return InDoubt("no answer")
        return Accepted(dispatch.key)

    async def run() -> None:
        async with world.at_work() as worker:
            await worker.opened.wait()
            customers = Customers(world, worker)
            await customers.go_on(12)
            world.channels[A].verdict = world.channels[B].verdict = verdict
            world.service.enqueue(*(message(id_) for id_ in doubtful))
            await customers.go_on(40)
        for id_ in doubtful:
            of = [(name, d.key) for name in (A, B) for _, d in sent_by(world, name) if d.entry.id == id_]
            assert len(of) == 3
            assert len(set(of)) == 1

    live(run)
