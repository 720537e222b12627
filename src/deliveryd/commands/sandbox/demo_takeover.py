"""`deliveryd demo --journal postgresql`: two workers on one journal, of which one is killed."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from rich.text import Text

from deliveryd.commands.common.output import print_errors
from deliveryd.commands.common.text_output import TextConsole
from deliveryd.commands.sandbox.demo_worker import DEMO_LEASE, DemoWorker
from deliveryd.commands.sandbox.takeover_evidence import fates_of, receipts_taken, sent_by
from deliveryd.commands.sandbox.takeover_outcome import (
    Killed,
    Takeover,
    checks_of,
    counted,
    in_words,
    table_of,
)
from deliveryd.errors import DeliverydError
from deliveryd.journal.opening import open_reader
from deliveryd.journal.place import JournalDatabase
from deliveryd.sandbox.faults import ApplyThenDelay, Delay, Fault, StandInEndpoint
from deliveryd.sandbox.postgres import PACKAGE, EmbeddedPostgres, PostgresFailed, PostgresMissing
from deliveryd.sandbox.scenario_parcels import parcel_scenario
from deliveryd.sandbox.server import Sandbox
from deliveryd.telemetry import log_writing

if TYPE_CHECKING:
    from rich.status import Status

    from deliveryd.journal.postgresql.workers import WorkerRecord, Workers

MESSAGES = 120
_REPORTING_CHANNELS = ("sms", "messenger")

_ANSWERS_AFTER = 0.4
"""Seconds that providers and the service take, so that much is under way when a worker dies."""

_BEFORE_THE_KILL = 12
"""Messages that each worker has sent by then."""

_SLOW: Mapping[StandInEndpoint, Fault] = {
    "provider.sms": ApplyThenDelay(_ANSWERS_AFTER),
    "provider.messenger": Delay(_ANSWERS_AFTER),
    "events": Delay(_ANSWERS_AFTER),
}
"""A request that is cut off was carried out by the first, and wasn't by the others."""

_ADOPTED_WITHIN = 5 * DEMO_LEASE
_ENDED_WITHIN = 60.0
_OFFERED_AGAIN_AFTER = 10.0
"""Seconds after which the queue hands out again what nobody confirmed: what died before it was recorded."""

_LOOK = 0.1
_DRIVER = "pip install --no-deps --require-hashes -r locks/postgresql.txt"


def play_takeover() -> None:
    """Run the demo with two workers. Raises DeliverydError if it can't, or if what it shows doesn't hold."""
    workers_of = _readers()
    log_writing.configure("error", "auto")
    with tempfile.TemporaryDirectory(prefix=f"deliveryd-demo-{os.getpid()}-", dir="/tmp") as name:
        folder = Path(name)  # a short one: sockets are in it
        if os.geteuid() == 0:
            folder.chmod(0o711)  # the server runs as nobody then
        try:
            server = EmbeddedPostgres(folder / "database")
        except PostgresMissing:
            raise DeliverydError(_missing(f"pip install {PACKAGE}")) from None
        is_told = anyio.run(_until_a_signal, _Stage(folder, server, workers_of).play)
    if is_told is None:
        raise DeliverydError("the demo was interrupted; nothing of it is left")
    if not is_told:
        raise DeliverydError("the demo failed: what is marked above doesn't hold")


def _readers() -> Callable[[JournalDatabase], Workers]:
    try:
        from deliveryd.journal.postgresql.workers import Workers  # noqa: PLC0415  # an extra
    except ImportError:
        raise DeliverydError(_missing(f"{_DRIVER}, then pip install {PACKAGE}")) from None
    return Workers


def _missing(commands: str) -> str:
    return f"demo --journal postgresql starts a server of its own; first, in a checkout: {commands}"


async def _until_a_signal(play: Callable[[], Awaitable[bool]]) -> bool | None:
    """Play to the end; None: a signal cut it short."""
    is_told: bool | None = None
    failure: Exception | None = None

    async def stop() -> None:
        async for _ in signals:
            if sys.stderr.isatty():
                print_errors("", "deliveryd: the workers and the database are ended")
            tasks.cancel_scope.cancel()

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            try:
                is_told = await play()
            except Exception as error:  # raised below, out of the group
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return is_told


class _Stage:
    """A service with providers, a database, and the workers "one" and "two"."""

    def __init__(
        self, folder: Path, server: EmbeddedPostgres, workers_of: Callable[[JournalDatabase], Workers]
    ) -> None:
        self._server = server
        self._journal = JournalDatabase(server.url)
        self._records = workers_of(self._journal)
        self._one, self._two = (DemoWorker(name, folder / name) for name in ("one", "two"))
        self._sandbox = Sandbox()
        self._scenario = parcel_scenario(MESSAGES)
        self._console = TextConsole(width=None if sys.stdout.isatty() else 150, highlight=False)
        self._began = time.monotonic()

    async def play(self) -> bool:
        """Tell the story; return whether it came out as it must."""
        self._say("a service, two providers, PostgreSQL and two workers start")
        with self._console.status("PostgreSQL starts") as progress:
            async with self._database(), self._sandbox, self._workers(progress):
                await self._until_both_send(progress)
                killed = await self._kill()
                adopted_after = await self._watch_lease(killed, progress)
                await self._until_all_is_told(progress)
                status = await self._two.end()
                audit = await to_thread.run_sync(open_reader(self._journal).audit)
                state = self._sandbox.state
                takeover = Takeover(
                    killed,
                    adopted_after,
                    fates_of(state, self._ids),
                    receipts_taken(state, killed),
                    audit,
                    status,
                )
        self._say('"two" and PostgreSQL have ended\n')
        checks = checks_of(takeover)
        self._console.print(table_of(takeover))
        for check in checks:
            self._console.print(check.line)
        return all(check.holds for check in checks)

    @property
    def _ids(self) -> Sequence[int]:
        return [exhibit.id for exhibit in self._scenario.exhibits]

    def _say(self, text: str) -> None:
        self._console.print(Text.assemble((f"{time.monotonic() - self._began:5.1f} s  ", "dim"), text))

    @asynccontextmanager
    async def _database(self) -> AsyncIterator[None]:
        try:
            await to_thread.run_sync(self._server.start)
            self._say("PostgreSQL runs, in a folder of its own")
            yield
        except PostgresFailed as error:
            raise DeliverydError(f"the demo's PostgreSQL: {error}") from None
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._server.stop)

    @asynccontextmanager
    async def _workers(self, progress: Status) -> AsyncIterator[None]:
        """Both at work, with all messages in the queue."""
        progress.update("two workers start")
        state = self._sandbox.state
        state.seen = deque()  # all requests
        state.redeliver_after = _OFFERED_AGAIN_AFTER
        for endpoint, delay in _SLOW.items():
            state.fail_until_healed(endpoint, delay)
        both = self._one, self._two
        try:
            for worker in both:
                worker.start(self._sandbox.base_url, self._server.url, self._scenario)
            for worker in both:
                await worker.until_ready()
            told = " and ".join(f'"{worker.name}" (process {worker.pid})' for worker in both)
            self._say(f"two workers share it as their journal: {told}; lease {DEMO_LEASE:.0f} s")
            for channel, worker in zip(_REPORTING_CHANNELS, both, strict=True):
                state.receipt_targets[channel] = f"{worker.receipts}/receipts/{channel}"
            self._scenario.load_into(state)
            self._say(
                f'{MESSAGES} messages are queued; receipts of SMS go to "one", of messenger texts to "two"'
            )
            yield
        finally:
            for worker in both:
                worker.kill()

    async def _until_both_send(self, progress: Status) -> None:
        for worker in (self._one, self._two):
            await self._until(
                lambda: sent_by(self._sandbox.state, worker.name) >= _BEFORE_THE_KILL,  # noqa: B023
                lambda: self._sent,
                progress,
            )

    async def _kill(self) -> Killed:
        """End worker one as a dying machine does; return what it left."""
        state = self._sandbox.state
        sent = len(state.accepted())
        self._one.kill()
        at, receipts = time.monotonic(), len(state.receipts)
        name = self._one.recorded_as
        self._say(f'kill -9 of "one", when {sent} messages were sent')
        state.receipt_targets["sms"] = f"{self._two.receipts}/receipts/sms"
        await anyio.sleep(_LOOK)  # a commit that the server has received already takes place
        record = next(each for each in await self._recorded() if each.name == name)
        held = await to_thread.run_sync(self._records.held, record.id)
        self._say(f"it had {in_words(held)}; and {counted(record.events, 'unreported event')}")
        self._say('"two" takes what is in the queue, and all receipts; what "one" had waits for its lease')
        return Killed(at, held, record.events, receipts)

    async def _watch_lease(self, killed: Killed, progress: Status) -> float | None:
        """Wait until worker two has what worker one had; return after how many seconds, None: never."""
        while (passed := time.monotonic() - killed.at) < _ADOPTED_WITHIN:
            there = {each.name: each for each in await self._recorded()}
            one = there.get(self._one.recorded_as)
            if one is None:
                for endpoint in _SLOW:
                    self._sandbox.state.heal(endpoint)
                self._say(
                    f'the lease of "one" is over, {passed:.1f} s after the kill: "two" adopted what it had'
                )
                return passed
            progress.update(
                f'the lease of "one" wasn\'t renewed for {one.still:.1f} of {one.lease:.0f} s; {self._sent}'
            )
            await anyio.sleep(_LOOK)
        return None

    async def _until_all_is_told(self, progress: Status) -> None:
        state = self._sandbox.state

        def count() -> int:
            return sum("delivered" in state.statuses(id_) for id_ in self._ids)

        await self._until(
            lambda: count() == MESSAGES,
            lambda: f"{count()} of {MESSAGES} messages are reported as delivered",
            progress,
        )
        self._say(f"{count()} of {MESSAGES} messages are reported as delivered")

    async def _until(self, holds: Callable[[], bool], text: Callable[[], str], progress: Status) -> None:
        """Wait, and show how far it came; what doesn't come is found missing in the end."""
        with anyio.move_on_after(_ENDED_WITHIN):
            while not holds():
                progress.update(text())
                await anyio.sleep(_LOOK)

    async def _recorded(self) -> Sequence[WorkerRecord]:
        return await to_thread.run_sync(self._records.list)

    @property
    def _sent(self) -> str:
        return f"{len(self._sandbox.state.accepted())} of {MESSAGES} messages are sent"
