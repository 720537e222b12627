"""The process: start order, readiness, signals, drain, watchdog. Intake stops before work does.

A loop that fails ends the process at once, with a clear last log line: no worker runs partly.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio
from anyio.abc import TaskGroup, TaskStatus

from deliveryd import __version__
from deliveryd.config import Config, Examined, page_token
from deliveryd.control.handlers import OrderHandler, ViewHandler
from deliveryd.control.protocol import (
    ForgetSettingsRequest,
    ReloadRequest,
    StatusRequest,
    TailRequest,
    socket_at,
)
from deliveryd.control.server import Answer, ControlServer
from deliveryd.delivery.cost_guard import KEEP_INTERVAL
from deliveryd.delivery.settings import SettingsCache
from deliveryd.errors import ConfigError, JournalError
from deliveryd.http.addresses import bind, parse_listen, url_of
from deliveryd.http.lazy_server import serve_when_asked
from deliveryd.journal.base import Account, Counts
from deliveryd.journal.followers import await_followers
from deliveryd.journal.journal import Journal
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Order
from deliveryd.model import SteadyClock, WallClock
from deliveryd.network.address import is_loopback
from deliveryd.rendering.language import load_tags
from deliveryd.runtime.secret_file import RenewedValue
from deliveryd.runtime.threads import Blocking, in_thread
from deliveryd.runtime.wakeup import AutoResetEvent
from deliveryd.states import ENDED, State
from deliveryd.telemetry.log_events import Event, LoggedProgress, log
from deliveryd.worker.health import WorkerHealth
from deliveryd.worker.history import SAMPLE_INTERVAL
from deliveryd.worker.outside import Openers, open_outside, open_tracer, traced
from deliveryd.worker.reload import Around, Reloader
from deliveryd.worker.systemd import Notifier
from deliveryd.worker.wiring import OPENERS, Parts, assemble

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from deliveryd.admin.actions import Actions
    from deliveryd.receipts.app import Receipts

COUNT_INTERVAL = 10.0
STATUS_INTERVAL = 10.0
PRUNE_INTERVAL = 60.0
TELL_INTERVAL = 60.0
CATCH_UP_INTERVAL = 1.0
"""Seconds between tries to write lines of the log that wait for a reader, while no new ones are logged."""

OVERDUE_INTERVAL = 300.0
CUT_INTERVAL = 300.0
"""Seconds between truncations of the journal's log, which contains deleted data, and between retries."""

SWEEP_INTERVAL = 60.0
PRUNE_BATCH = 100
GIVE_BACK_BATCH = 64
LAST_LOOK = 5.0
"""Seconds for reading the totals of a shared journal at the end: its database may be gone."""

LAST_MOMENTS = 10.0
"""Seconds from the end of the drain, or of the last take, until the process ends, whatever hangs."""

PRUNE_PAUSE = 0.025
"""Seconds between two batches of either, so that the line has most of the writer's time."""


class Addresses(NamedTuple):
    """Addresses of the worker's servers, as `http://host:port`; None: turned off."""

    admin: str | None
    receipts: str | None


class Ending(NamedTuple):
    """A shutdown that began: the number of attempts in progress, and the seconds they may take."""

    under_way: int
    seconds: float


class Remaining(NamedTuple):
    """Messages that aren't at their end, though nothing holds them, and events that weren't accepted yet."""

    messages: int = 0
    events: int = 0


class Supervisor:
    """Runs one worker.

    `on_ready` is called with its addresses as soon as it takes messages, `on_ending` on the first signal to
    stop. `examine` reads the configuration again for a reload; None: it stays what it is.
    """

    def __init__(
        self,
        config: Config,
        clock: SteadyClock | None = None,
        *,
        notifier: Notifier | None = None,
        on_ready: Callable[[Addresses], None] = lambda _addresses: None,
        on_ending: Callable[[Ending], None] = lambda _ending: None,
        openers: Openers = OPENERS,
        examine: Callable[[], Examined] | None = None,
        blocking: Blocking | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or WallClock()
        self._notifier = notifier or Notifier.from_environment()
        self._on_ready = on_ready
        self._on_ending = on_ending
        self._openers = openers
        self._examine = examine or (lambda: Examined(self._config, []))
        self._blocking = blocking
        self._stop = anyio.Event()
        self._hung_up = AutoResetEvent()
        self._orders: OrderHandler
        self._last_resort: threading.Timer | None = None
        self.paused: Mapping[str, int] = {}
        """How many messages were paused when the worker ended, by what they waited for."""

        self.intake_is_paused = False
        """Whether the intake was paused then."""

        self.was_idle = False
        """With `until_idle`, whether nothing was left to do; no: it was stopped before."""

        self.left = Remaining()
        """What the next start has to go on with; nothing on a shared journal, where others may do so."""

        self.lost_a_batch = False
        """Whether a batch may be lost of which the journal has no record."""

        self.reloader: Reloader | None = None
        """What reloads, set when the start is over."""
        self.account: Account | None = None
        """The totals of the journal, set when the worker has ended; None: they couldn't be read any more."""

    @property
    def config(self) -> Config:
        """The configuration that is in force."""
        return self._config

    @property
    def held_in_doubt(self) -> int:
        """How many messages were held in doubt when the worker ended."""
        return self.account.states.get(State.IN_DOUBT, 0) if self.account is not None else 0

    def stop(self) -> None:
        """Begin the shutdown, as SIGTERM does."""
        self._stop.set()

    def reload(self) -> None:
        """Read the configuration again and apply it, as SIGHUP does; during a start, after it."""
        self._hung_up.set()

    async def run(self, *, until_idle: bool = False) -> None:
        """Run until stopped or, with `until_idle`, until nothing is left to do.

        Raises ConfigError, JournalError, or the error that ended a loop.
        """
        log(Event.WORKER_STARTED, version=__version__, pid=os.getpid())
        tracer = open_tracer(self._config.otlp)
        self._openers = traced(self._openers, tracer)
        async with (
            _hangups() as hangups,
            open_outside(self._config, self._openers) as outside,
            assemble(self._config, self._clock, outside, self._blocking, tracer) as parts,
            anyio.create_task_group() as servers,
        ):
            health = WorkerHealth(self._config, parts, parts.common.clock)
            self._orders = OrderHandler(parts.journal, parts.recorder, parts.stations.dispatchers)
            parts.metrics.levels = health.levels
            close_servers = anyio.Event()
            addresses = self._open_servers(parts, health, servers, close_servers)
            if parts.exporter is not None:
                servers.start_soon(parts.exporter.run, close_servers)
            await parts.pipeline.recover()
            async with _loops(parts.stations.intake.end) as loops:
                serve_receipts = partial(_serve_receipts, servers, close_servers)
                reloader = self._reloader(parts, health, loops, serve_receipts)
                self._start_loops(parts, health, loops)
                self._start_control(
                    reloader, parts.settings, ViewHandler(health.overview, health.tail), loops
                )
                if hangups is not None:
                    loops.start_soon(self._note_hangups, hangups)
                loops.start_soon(_reconcile, parts.journal)
                await loops.start(self._listen_to_signals, parts)
                if until_idle:
                    loops.start_soon(self._stop_when_idle, parts)
                loops.start_soon(self._blocking or in_thread, load_tags)
                self._notifier.ready()
                self._notifier.status(health.sentence())
                log(Event.WORKER_READY, channels=list(self._config.channels.configured))
                self._on_ready(addresses)
                await self._stop.wait()
                await self._drain(parts, health)
                await _log_failures(parts)
                self.intake_is_paused = parts.memory.pauses.intake is not None
                with anyio.move_on_after(LAST_LOOK if parts.journal.is_shared else math.inf):
                    counts = await parts.journal.counts()
                    self.paused = counts.paused
                    self.left = Remaining() if parts.journal.is_shared else _remaining(counts)
                    self.account = await _reconcile(parts.journal)
                self.lost_a_batch = parts.stations.intake.lost_a_batch
                loops.cancel_scope.cancel()
            close_servers.set()
        if self._last_resort is not None:
            self._last_resort.cancel()
        log(Event.WORKER_STOPPED)

    def _reloader(
        self,
        parts: Parts,
        health: WorkerHealth,
        tasks: TaskGroup,
        serve_receipts: Callable[[Config, Receipts], object],
    ) -> Reloader:
        def adopted(config: Config) -> None:
            self._config = config
            health.config = config

        around = Around(
            self._examine, self._openers, serve_receipts, adopted, self._stop.is_set,
            self._blocking or in_thread,
        )  # fmt: skip
        self.reloader = health.reloader = Reloader(self._config, parts, around, tasks)
        return self.reloader

    def _start_loops(self, parts: Parts, health: WorkerHealth, loops: TaskGroup) -> None:
        for loop in parts.pipeline.loops():
            loops.start_soon(loop)
        loops.start_soon(self._housekeeping, parts, health)
        loops.start_soon(self._notify_systemd, health)

    def _start_control(
        self, reloader: Reloader, settings: SettingsCache, views: ViewHandler, loops: TaskGroup
    ) -> None:
        """Begin to take operators' orders and requests, and signals to reload."""

        async def reload(request: ReloadRequest, _user: str) -> Mapping[str, object]:
            found = await reloader.reload(
                accept_orphans=request.accept_orphans, accept_customers=request.accept_customers
            )
            return {"outcome": found.outcome, "changes": found.changes}

        async def forget_settings(request: ForgetSettingsRequest, _user: str) -> Mapping[str, object]:
            return {"forgotten": settings.forget(request.settings)}

        answers: Mapping[type, Answer] = {
            Order: self._orders.carry_out, ReloadRequest: reload, ForgetSettingsRequest: forget_settings,
            StatusRequest: views.status,
        }  # fmt: skip
        place = socket_at(self._config.journal.place, self._config.control.socket)
        control = ControlServer(place, answers, {TailRequest: views.tail})
        loops.start_soon(control.run)
        loops.start_soon(self._reload_when_hung_up, reloader)
        loops.start_soon(_every, SWEEP_INTERVAL, reloader.sweep)

    def _open_servers(
        self, parts: Parts, health: WorkerHealth, servers: TaskGroup, stop: anyio.Event
    ) -> Addresses:
        def admin() -> ASGIApp:
            from deliveryd.admin.app import admin_app  # noqa: PLC0415  # loads starlette

            own = parse_listen(self._config.admin.listen)[0]
            hosts = {own, *self._config.admin.allowed_hosts}
            return admin_app(health, parts.metrics, hosts, actions())

        actions, listen = self._actions(parts, health), self._config.admin.listen
        page = _serve(servers, stop, "admin", listen, admin) if listen else None
        if parts.receipts is None:
            return Addresses(page, None)
        return Addresses(page, _serve_receipts(servers, stop, self._config, parts.receipts))

    def _actions(self, parts: Parts, health: WorkerHealth) -> Callable[[], Actions | None]:
        """What loads the actions of the status page; None: it only reads.

        The token is read here: the file may be unusable once the first connection loads the page. Raises
        ConfigError.
        """
        file = self._config.admin.token_file
        if file is None:
            return lambda: None
        try:
            token = RenewedValue([file.path], partial(page_token, file))
        except ValueError as error:
            raise ConfigError([f"admin.token_file: {error}"]) from None
        if not is_loopback(parse_listen(self._config.admin.listen)[0]):
            log(Event.SERVER_UNENCRYPTED, server="admin", listen=self._config.admin.listen)
        place, providers = self._config.journal.place, parts.stations.dispatchers
        unfollowed = partial(await_followers, place, self._config.journal.lease)

        def load() -> Actions:
            from deliveryd.admin.actions import Actions  # noqa: PLC0415  # loads starlette
            from deliveryd.worker.operator import PageOperator  # noqa: PLC0415  # loads what reads a journal

            reader = open_reader(place)
            return Actions(PageOperator(self._orders, health, reader, providers, unfollowed), token.current)

        return load

    async def _note_hangups(self, hangups: AsyncIterable[object]) -> None:
        async for _ in hangups:
            self.reload()

    async def _reload_when_hung_up(self, reloader: Reloader) -> None:
        """Reload after SIGHUP; however many came meanwhile, once more is enough."""
        while True:
            if await self._hung_up.wait():
                with suppress(ConfigError):  # logged, and shown by the status
                    await reloader.reload(accept_orphans=False)

    async def _listen_to_signals(self, parts: Parts, *, task_status: TaskStatus[None]) -> None:
        if (
            threading.current_thread() is not threading.main_thread()
        ):  # signals can't be received in this thread
            task_status.started()
            return
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for received in signals:
                if self._stop.is_set():
                    parts.stations.intake.give_up("a second signal ended the worker")
                    log(Event.WORKER_STOPPED, signal=received.name)
                    os._exit(1)  # a second signal: exit at once; the next start resumes from the journal
                parts.stations.intake.stop()  # what it asked for by now bounds the end
                ending = Ending(_under_way(parts), self._longest_end(parts))
                log(
                    Event.WORKER_DRAINING,
                    signal=received.name, in_flight=ending.under_way, seconds=ending.seconds,
                )  # fmt: skip
                self._stop.set()
                self._last_resort = _end_whatever_hangs(ending.seconds + LAST_MOMENTS)
                self._on_ending(ending)

    def _longest_end(self, parts: Parts) -> float:
        """Seconds that the drain, and an answer of the queue that was asked for, may take."""
        return max(self._config.run.drain_timeout, parts.stations.intake.answer_due)

    async def _stop_when_idle(self, parts: Parts) -> None:
        await parts.pipeline.until_idle()
        self.was_idle = not self._stop.is_set()  # a drain leaves nothing under way either
        self._stop.set()

    async def _drain(self, parts: Parts, health: WorkerHealth) -> None:
        health.draining = True
        self._notifier.stopping(self._longest_end(parts) + LAST_MOMENTS)
        self._notifier.status("Finishing work in progress")
        with anyio.move_on_after(self._config.run.drain_timeout) as scope:
            await parts.pipeline.drain()
        if scope.cancelled_caught:
            log(Event.WORKER_CUT_OFF, in_flight=_under_way(parts), seconds=self._config.run.drain_timeout)
            await parts.pipeline.end_take()

    async def _housekeeping(self, parts: Parts, health: WorkerHealth) -> None:
        async with anyio.create_task_group() as chores:
            chores.start_soon(_every, COUNT_INTERVAL, self._count, parts, health)
            chores.start_soon(_every, SAMPLE_INTERVAL, _sample, health)
            chores.start_soon(_every, PRUNE_INTERVAL, self._prune, parts)
            chores.start_soon(_every, CUT_INTERVAL, parts.journal.cut_log)
            chores.start_soon(_every, TELL_INTERVAL, _log_failures, parts)
            chores.start_soon(_every, CATCH_UP_INTERVAL, _catch_up)
            chores.start_soon(_every, OVERDUE_INTERVAL, parts.overdue.count)
            chores.start_soon(_every, KEEP_INTERVAL, parts.common.guard.keep)

    async def _count(self, parts: Parts, health: WorkerHealth) -> None:
        counts, open_ = await parts.journal.counts(), None
        with suppress(JournalError):  # read beside the writer, where a broken journal ends the worker
            open_ = await parts.journal.open_work()
        health.refresh(counts, open_)

    async def _prune(self, parts: Parts) -> None:
        await parts.common.waiting.keep_clock()
        before = parts.memory.passed.before(self._config.journal.retention)
        progress = LoggedProgress(Event.JOURNAL_CLEANING, anyio.current_time)
        while pruned := await parts.journal.prune(before, PRUNE_BATCH):
            progress.add(pruned)
            await anyio.sleep(PRUNE_PAUSE)
        if progress.count:
            log(Event.JOURNAL_CLEANED, count=progress.count, seconds=progress.seconds)
            await parts.memory.pausing.refresh()
        given = GIVE_BACK_BATCH
        while given:
            given = await parts.journal.give_back(GIVE_BACK_BATCH)
            await anyio.sleep(PRUNE_PAUSE)

    async def _notify_systemd(self, health: WorkerHealth) -> None:
        interval = self._notifier.watchdog_interval or STATUS_INTERVAL
        while True:
            alive, ages = health.alive()
            if alive:
                self._notifier.watchdog()
            else:
                loop, age = max(ages, key=lambda item: item[1])
                log(Event.WORKER_STUCK, loop=loop, seconds=age)
            if not health.draining:
                self._notifier.status(health.sentence())
            await anyio.sleep(interval)


def _serve(  # noqa: PLR0917 - a server is all of it
    servers: TaskGroup,
    stop: anyio.Event,
    name: str,
    listen: str,
    build: Callable[[], ASGIApp],
    proxies: Sequence[str] = (),
) -> str:
    """Begin to serve at an address; return it as a URL. Raises ConfigError, AddressInUse."""
    bound = bind(f"{name}.listen", listen)
    log(Event.SERVER_LISTENING, server=name, listen=url_of(bound))
    servers.start_soon(serve_when_asked, build, bound, stop, proxies)
    return url_of(bound)


def _serve_receipts(servers: TaskGroup, stop: anyio.Event, config: Config, receipts: Receipts) -> str:
    """Begin to serve receipts. Raises ConfigError, AddressInUse."""
    options = config.receipts
    return _serve(servers, stop, "receipts", options.listen, receipts.app, options.trusted_proxies)


@asynccontextmanager
async def _loops(end: Callable[[], Awaitable[None]]) -> AsyncIterator[TaskGroup]:
    """What runs side by side. If the journal ends it, the log has the reason: nothing more can be recorded.

    `end` ends what isn't cancelled with them.
    """
    try:
        async with anyio.create_task_group() as loops:
            try:
                yield loops
            finally:
                loops.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await end()
    except BaseExceptionGroup as errors:
        lost: BaseException | None = errors.subgroup(JournalError)
        while isinstance(lost, BaseExceptionGroup):
            lost = lost.exceptions[0]
        if lost is not None:
            log(Event.JOURNAL_LOST, reason=str(lost))
        raise


@asynccontextmanager
async def _hangups() -> AsyncIterator[AsyncIterable[object] | None]:
    """Provide each SIGHUP, also one from before it is asked for; by default it would end the process.

    None: only the main thread receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        yield signals


def _remaining(counts: Counts) -> Remaining:
    held = counts.states.get(State.IN_DOUBT, 0) + sum(counts.paused.values())
    return Remaining(sum(counts.states.values()) - held, counts.events_waiting)


def _end_whatever_hangs(seconds: float) -> threading.Timer:
    """End the process as a kill does unless it ends before: a session of the database may hang for ever."""

    def end() -> None:
        log(Event.WORKER_HUNG, seconds=seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    with suppress(RuntimeError):  # no thread can be begun: the drain goes on unwatched
        timer.start()
    return timer


def _under_way(parts: Parts) -> int:
    return sum(each.admission.under_way for each in parts.stations.dispatchers.values())


async def _reconcile(journal: Journal) -> Account:
    """Log the totals of the journal, and an error if messages are missing (design 4, promise 1)."""
    account = await journal.account()
    waiting, in_doubt = (account.states.get(state, 0) for state in (State.WAITING, State.IN_DOUBT))
    sent, delivered, failed, set_aside = (account.ends.get(end, 0) for end in sorted(ENDED))
    log(
        Event.JOURNAL_ACCOUNT,
        taken=account.taken, sent=sent, delivered=delivered, failed=failed, set_aside=set_aside,
        waiting=waiting, in_doubt=in_doubt,
        in_flight=sum(account.states.values()) - waiting - in_doubt, pruned=account.pruned,
        forgotten=account.forgotten,
    )  # fmt: skip
    if account.gap:
        log(Event.JOURNAL_GAP, gap=account.gap)
    return account


async def _log_failures(parts: Parts) -> None:
    parts.recorder.log_counts()


async def _catch_up() -> None:
    sys.stderr.flush()  # doesn't wait: see deliveryd.telemetry.output


async def _sample(health: WorkerHealth) -> None:
    health.history.sample()


async def _every(seconds: float, chore: Callable[..., Awaitable[object]], *args: object) -> None:
    while True:
        await chore(*args)
        await anyio.sleep(seconds)
