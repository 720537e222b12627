"""Two workers on one real PostgreSQL database, with one service and the same providers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import psycopg
from anyio.abc import TaskGroup

from deliveryd.journal.journal import Journal
from deliveryd.journal.opening import JournalTerms, open_journal
from deliveryd.journal.place import JournalDatabase
from deliveryd.worker import wiring
from support.messages import message
from support.virtual import VirtualChannel, VirtualSupervisor, VirtualWorld

LEASE = 3.0
TIMEOUT = "1s"
"""Of the provider: its attempts are over when the lease is."""

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {word}"}}}})
QUICK = '[queue]\nbatch_size = 5\npoll_interval = "100ms"\nmax_poll_interval = "200ms"\n'


class Worker(VirtualWorld):
    """One of the workers: its own folder, the service and the providers of all."""

    def __init__(self, folder: Path, first: Worker | None = None) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.add(f'timeout = "{TIMEOUT}"\nretry = {{ base = "100ms", max = "1s" }}\n{QUICK}')
        self.service.settings[1] = SMS
        if first is not None:
            self.service = first.service
            self.channel.attempts = first.channel.attempts
        self.scope: anyio.CancelScope
        self.is_killed = False
        self.running: VirtualSupervisor
        self.error: BaseException | None = None

    @property
    def channel(self) -> VirtualChannel:
        """The provider, as this worker calls it; `attempts` are those of all."""
        return self.channels["sms"]

    async def run(self, tasks: TaskGroup, *, until_idle: bool = False) -> None:
        """Begin, and return when it is open."""
        self.running, self.scope = self.supervisor(), anyio.CancelScope()

        async def run() -> None:
            with self.scope:
                try:
                    await self.running.run(until_idle=until_idle)
                except Exception as error:  # as the process would report it
                    self.error = error

        tasks.start_soon(run)
        await self.running.opened.wait()

    def kill(self) -> None:
        """End at once; nobody is told."""
        self.running.parts.journal._end = lambda: None  # type: ignore[attr-defined]
        self.is_killed = True
        self.scope.cancel()


class Place:
    """Two workers of one journal, begun by the test."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.one = Worker(folder / "one")
        self.other = Worker(folder / "other", self.one)
        self.service = self.one.service
        self.attempts = self.one.channel.attempts
        for worker in (self.one, self.other):
            worker.channel.seconds = 0.01

    def enqueue(self, *ids: int) -> None:
        self.service.enqueue(*map(message, ids))

    async def until(self, holds: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait until something holds. Raises TimeoutError."""
        with anyio.fail_after(seconds):
            while not holds():  # noqa: ASYNC110  # two workers and a database: no one signal
                await anyio.sleep(0.02)

    def ended(self, *ids: int) -> bool:
        return all("sent" in self.service.statuses(id_) for id_ in ids)

    def keys(self) -> dict[int, set[str]]:
        """The keys under which each message was sent."""
        found: defaultdict[int, set[str]] = defaultdict(set)
        for _, dispatch in self.attempts:
            found[dispatch.entry.id].add(dispatch.key)
        return found

    def recorded(self) -> list[int]:
        """The messages that are in the journal."""
        with psycopg.connect(self.url, autocommit=True) as db:
            return [id_ for (id_,) in db.execute("SELECT id FROM main.message ORDER BY id")]

    def count(self, query: str) -> Any:
        with psycopg.connect(self.url, autocommit=True) as db:
            [(value,)] = db.execute(query).fetchall()
            return value


@contextmanager
def on_database(url: str) -> Iterator[None]:
    """Workers keep their journals there."""

    @asynccontextmanager
    async def open_there(*_arguments: Any, observe: Any, **_options: Any) -> AsyncIterator[Journal]:
        terms = JournalTerms(lease=LEASE)
        async with open_journal(JournalDatabase(url), terms, observe=observe) as journal:
            yield journal

    with patch.object(wiring, "open_journal", open_there):
        yield


@asynccontextmanager
async def both(place: Place) -> AsyncIterator[None]:
    """Both at work; those that are left are stopped in the end."""
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        await place.other.run(tasks)
        yield
        place.one.running.stop()
        place.other.running.stop()
