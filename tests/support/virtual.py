"""A worker in virtual time: the real line on a clock that jumps, and a service that fails as a test wants."""

from __future__ import annotations

import random
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import httpx
import trio
from anyio.abc import TaskGroup

from deliveryd.channels.base import NO_ADDRESS, Accepted, Channel, Dispatch, Found, Unknown, Verdict
from deliveryd.channels.options import ProviderConfig
from deliveryd.config import Config, examine, load
from deliveryd.delivery import pipeline
from deliveryd.directory.base import Directory, NoDirectory
from deliveryd.errors import ConfigError
from deliveryd.http.client import HttpClient
from deliveryd.model import Customer
from deliveryd.runtime.threads import inline
from deliveryd.service.client import ServiceClient
from deliveryd.worker import supervisor
from deliveryd.worker.health import WorkerHealth
from deliveryd.worker.outside import Openers
from deliveryd.worker.supervisor import Addresses, Supervisor
from deliveryd.worker.wiring import Parts
from support.endless import endless_loops_ended, jumping_clock
from support.memory_wire import MemoryWire
from support.service import Service

START = 1_800_000_000_000_000
"""The instant at which virtual time begins."""

CONFIG = """\
[service]
base_url = "http://service"
[settings]
cache_dir = "cache"
[journal]
url = "sqlite:///journal.db"
[admin]
listen = ""
[receipts]
listen = ""
[channels.sms]
adapter = "http"
url = "http://provider/sms"
json = { text = "{content.text}" }
"""

Handler = Callable[[httpx.Request], httpx.Response | None]
"""What the service does instead of its work: an answer or an exception; None: its work."""


def live(run: Callable[[], Awaitable[None]], hours: float = 3.0) -> float:
    """Run in virtual time; the seconds it took there.

    Raises TooSlowError after so many hours of it, and when a loop turns without end.

    The jitter of pauses is the same each time, so that a bound on what happens is kept always or never.
    """
    random.seed(1)
    trio._core._run._r.seed(1)

    async def timed() -> float:
        with trio.fail_after(hours * 3600) as scope, endless_loops_ended(scope):
            await run()
        return trio.current_time()

    fewer = (patch.object(pipeline, "IDLE_CHECK", 0.5), patch.object(supervisor, "SAMPLE_INTERVAL", 10.0))
    with fewer[0], fewer[1]:  # fewer looks make hours cheaper
        return trio.run(timed, clock=jumping_clock())


class VirtualClock:
    """The time of day, moved by the event loop's clock."""

    def now(self) -> int:
        """The present instant."""
        return START + self.elapsed()

    def elapsed(self) -> int:
        """Microseconds that nobody sets."""
        return int(anyio.current_time() * 1_000_000)


class SteppingClock(VirtualClock):
    """A time of day that a test sets: it is `ahead` by so many microseconds."""

    def __init__(self, ahead: int = 0) -> None:
        self.ahead = ahead

    def now(self) -> int:
        """The present instant, by how wrong the clock is."""
        return super().now() + self.ahead


class VirtualService(Service):
    """The service behind a transport of httpx. `trouble` is asked before each request."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, str]] = []
        """When which path was requested."""
        self.trouble: Handler = lambda _request: None

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        path = request.url.path
        self.asked.append((anyio.current_time(), path))
        answer = self.trouble(request)
        if answer is None:
            done = self.work(request.method, path, request.url.query.decode(), request.content)
            answer = httpx.Response(done.status_code, content=bytes(done.body))
        return answer


class VirtualChannel:
    """A provider in memory. `verdict` decides about each attempt."""

    customer_fields: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.attempts: list[tuple[float, Dispatch]] = []
        self.verdict: Callable[[Dispatch], Verdict] = lambda dispatch: Accepted(dispatch.key)
        self.asked: list[tuple[float, Dispatch]] = []
        self.found: Callable[[Dispatch], Found] = lambda _dispatch: Unknown("not asked")
        self.seconds = 0.05
        self.under_way = self.closed = self.cut_off = 0

    def reaches(self, customer: Customer | None) -> bool:
        """Everybody."""
        return True

    def unreached(self, customer: Customer | None) -> str:
        """Nobody."""
        return NO_ADDRESS

    devices_field: str | None = None
    lookup_after: float | None = None

    async def look_up(self, dispatch: Dispatch) -> Found:
        """What `found` says."""
        self.asked.append((anyio.current_time(), dispatch))
        return self.found(dispatch)

    def recipients(self, customer: Customer) -> tuple[str, ...]:
        """The customer's number."""
        return tuple(filter(None, [customer.fields.get("phone")]))

    async def send(self, dispatch: Dispatch) -> Verdict:
        """Decide after a while."""
        self.under_way += 1
        await anyio.sleep(self.seconds)
        self.under_way -= 1
        self.attempts.append((anyio.current_time(), dispatch))
        return self.verdict(dispatch)

    def preview(self, dispatch: Dispatch) -> str:
        """Nothing to see."""
        return ""

    async def probe(self) -> str | None:
        """Always there."""
        return None

    async def aclose(self) -> None:
        """Count, and what it cuts off."""
        self.closed += 1
        self.cut_off += self.under_way


class VirtualSupervisor(Supervisor):
    """A worker without servers: reports of providers come in by a direct way, to `parts.receipts`."""

    parts: Parts
    health: WorkerHealth

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.opened = anyio.Event()
        """Set when `parts` is there, before anything is taken."""

    def _open_servers(
        self, parts: Parts, health: WorkerHealth, servers: TaskGroup, stop: anyio.Event
    ) -> Addresses:
        self.parts, self.health = parts, health
        self.opened.set()
        return Addresses(None, None)


class VirtualWorld:
    """The line in one folder, run as often as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "config.toml"
        self.path.write_text(CONFIG, encoding="utf-8")
        self.service = VirtualService()
        self.channels: defaultdict[str, VirtualChannel] = defaultdict(VirtualChannel)
        self.directory: Directory = NoDirectory()
        self.clock = VirtualClock()
        self.unopenable: str | None = None
        """A provider whose adapter can't be opened."""

    def write(self, text: str) -> None:
        """Replace the configuration."""
        self.path.write_text(text, encoding="utf-8")

    def journal_rows(self, query: str) -> list[tuple[object, ...]]:
        """Read the journal, also of a worker that runs."""
        with closing(sqlite3.connect(self.folder / "journal.db")) as db:
            return db.execute(query).fetchall()

    def add(self, tables: str) -> None:
        """Put tables behind the configuration."""
        self.path.write_text(self.path.read_text(encoding="utf-8") + tables, encoding="utf-8")

    def config(self) -> Config:
        """The configuration as it stands."""
        return load(self.path, environ={})

    def supervisor(self) -> VirtualSupervisor:
        """A worker that has not begun."""
        return VirtualSupervisor(
            self.config(),
            self.clock,
            openers=self.openers(),
            examine=lambda: examine(self.path, environ={}),
            blocking=inline,
        )

    async def run_until_idle(self) -> None:
        """Run a worker until there is nothing more to do."""
        await self.supervisor().run(until_idle=True)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[VirtualSupervisor]:
        """A worker that runs within the block, and is stopped after it."""
        async with anyio.create_task_group() as tasks:
            supervisor = self.supervisor()
            tasks.start_soon(supervisor.run)
            yield supervisor
            supervisor.stop()

    def openers(self) -> Openers:
        """What opens the service, the providers and the directory of this world."""

        def service(config: Config) -> ServiceClient:
            wire = MemoryWire(self.service.handle)
            return ServiceClient(HttpClient(wire, timeout=config.service.timeout), config.service.base_url)

        def provider(_config: Config, provider: ProviderConfig) -> Channel:
            if provider.identity == self.unopenable:
                raise ConfigError([f"{provider.place}: can't be opened"])
            return self.channels[provider.identity]

        async def directory(_config: Config) -> Directory:
            return self.directory

        return Openers(service, provider, directory)
