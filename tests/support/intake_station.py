"""Intake by itself, and a queue that answers as a test says."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio

from deliveryd.admin.exposition import expose
from deliveryd.delivery.intake import Intake
from deliveryd.delivery.memory import LineMemory
from deliveryd.delivery.outbox_signals import OutboxSignals
from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import (
    ServiceError,
)
from deliveryd.journal.journal import Journal
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.metrics import Metrics
from deliveryd.model import Entry
from deliveryd.runtime.threads import Blocking, in_thread, inline
from deliveryd.service.batch import Batch
from deliveryd.service.caller import Ready
from support.line import common_on, memory_on
from support.messages import queued_message as message

BATCH = 10


in_virtual_time = pytest.mark.parametrize("anyio_backend", ["virtual time"], indirect=True)


def batch(*numbers: int) -> Batch:
    return Batch([message(number) for number in numbers], [])


Act = Batch | ServiceError


class ScriptedQueue:
    """Answers as told, then with nothing; tells how many were asked for, and when."""

    def __init__(self, *script: Act) -> None:
        self.script = deque(script)
        self.asked: list[int] = []
        self.times: list[float] = []
        self._turn = anyio.Event()
        self.look: Callable[[], object] = list
        self.looks: list[object] = []

    async def take(self, count: int, ready: Ready | None) -> Batch:
        self.looks.append(self.look())
        self.asked.append(count)
        self.times.append(anyio.current_time())
        turn, self._turn = self._turn, anyio.Event()
        turn.set()
        await anyio.lowlevel.checkpoint()
        act = self.script.popleft() if self.script else batch()
        if isinstance(act, ServiceError):
            raise act
        return act

    async def asked_times(self, times: int) -> None:
        """Wait for so many takes."""
        while len(self.asked) < times:
            await self._turn.wait()

    def pauses(self) -> list[float]:
        """The seconds between the takes."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


class WatchedSignals(OutboxSignals):
    """Signals to the outbox that keep how many events were to be enough."""

    def __init__(self) -> None:
        super().__init__(BATCH)
        self.short: list[int] = []

    def hasten(self, events: int) -> None:
        self.short.append(events)


class WatchedRecorder(Recorder):
    """A recorder that keeps what it took, and may have an obstacle."""

    def __init__(self, journal: Journal, memory: LineMemory, metrics: Metrics) -> None:
        super().__init__(journal, memory, metrics)
        self.taken: list[Entry] = []
        self.told: list[int] = []
        self.blocked_by: str | None = None
        self.news = anyio.Event()

    def obstacle(self) -> str | None:
        return self.blocked_by

    async def take(self, *batch: Any, ahead: bool = False) -> Sequence[Entry]:
        entries = await super().take(*batch, ahead=ahead)
        self.taken += entries
        self.told.append(len(entries))
        self.news.set()
        self.news = anyio.Event()
        return entries


class Station:
    """Intake on a real journal, and what it recorded."""

    def __init__(self, queue: ScriptedQueue, journal: Journal, path: Path, most: int) -> None:
        self.queue = queue
        self.path = path
        self.metrics = Metrics([], "1")
        self.signals = WatchedSignals()
        memory = memory_on(journal, metrics=self.metrics, places=most)._replace(outbox=self.signals)
        self.in_flight = memory.in_flight
        self.recorder = WatchedRecorder(journal, memory, self.metrics)
        poll_interval = 1.0 if sniffio.current_async_library() == "trio" else 0.01
        self.intake = Intake(
            queue, common_on(journal, memory, self.recorder, metrics=self.metrics),
            batch_size=BATCH, take_ahead=0, poll_interval=poll_interval, max_poll_interval=30.0,
            answered_within=60.0,
        )  # fmt: skip

    @property
    def taken(self) -> list[Entry]:
        return self.recorder.taken

    async def heard_of(self, messages: int) -> None:
        """Wait until the line has been told of so many messages."""
        while len(self.taken) < messages:
            await self.recorder.news.wait()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the journal's file holds, as another process sees it."""
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute(query).fetchall()

    def counted(self, name: str) -> float:
        text = expose(self.metrics, "text/plain")[0].decode()
        [line] = [line for line in text.splitlines() if line.startswith(f"deliveryd_{name} ")]
        return float(line.rsplit(" ", 1)[1])


def _blocking() -> Blocking:
    return inline if sniffio.current_async_library() == "trio" else in_thread


@asynccontextmanager
async def running(
    path: Path,
    *script: Act,
    most: int = 1000,
    before: Callable[[Station], None] = lambda _station: None,
    queue: ScriptedQueue | None = None,
) -> AsyncIterator[Station]:
    """Intake at work on this script, stopped in the end."""
    async with open_journal_file(path / "journal.db", blocking=_blocking()) as journal:
        station = Station(queue or ScriptedQueue(*script), journal, path / "journal.db", most)
        before(station)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(station.intake.run)
            yield station
            station.intake.stop()
