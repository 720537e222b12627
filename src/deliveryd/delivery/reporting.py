"""Reporting: bring the journal's outbox to the service, in order, in batches, until each event is accepted.

A batch that the service refuses is split until the event that it refuses is found; that one is set aside, the
others go on. An outage changes nothing: the outbox waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import anyio

from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import ServiceError, ServiceRefused, ServiceUnavailable
from deliveryd.journal.base import Journal, OutboxRow
from deliveryd.metrics import Metrics
from deliveryd.runtime.backoff import backoff
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent, Heartbeats
from deliveryd.service.caller import Ready
from deliveryd.telemetry.log_events import Event, log

ABOUT_THE_EVENTS = frozenset({400, 409, 413, 422})
"""Refusals that concern the events; any other concerns credentials, the address or the method.

Those are waited out: they would be the same for every event, and set all of them aside.
"""

LONGEST_REPORT_PAUSE = 30.0

REFUSALS_LOG_INTERVAL = 3600.0
"""Seconds after which the log says again how many events the service keeps refusing."""


class EventSink(Protocol):
    """Where events go."""

    async def report(self, bodies: Sequence[str], ready: Ready) -> None:
        """Report a batch. `ready` is awaited before each request, the repeated ones too."""


class Reporting:
    """The loop from the outbox to the service."""

    def __init__(
        self,
        sink: EventSink,
        journal: Journal,
        recorder: Recorder,
        metrics: Metrics,
        heartbeats: Heartbeats,
        *,
        batch_size: int,
        flush_interval: float,
    ) -> None:
        self._sink = sink
        self._journal = journal
        self._recorder = recorder
        self._signals = recorder.outbox
        self._metrics = metrics
        self._heartbeats = heartbeats
        self._batch_size = batch_size
        self._flush_interval = flush_interval
        self._settled = AutoResetEvent()
        self._failures = 0
        self._refused_again = 0
        self._quiet_until = float("-inf")

    @property
    def down(self) -> bool:
        """Whether the last attempt to report failed."""
        return self._failures > 0

    def adopt(self, *, batch_size: int, flush_interval: float) -> None:
        """Report by other limits from now on."""
        if batch_size != self._batch_size:
            self._batch_size = batch_size
            self._signals.change_batches(batch_size)
        self._flush_interval = flush_interval

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self._heartbeats.beat("reporting")
            await self._signals.wait(self._flush_interval)
            await self._flush()

    async def flushed(self) -> None:
        """Return when nothing waits in the outbox any more; `run` does the reporting meanwhile."""
        while await self._journal.outbox(0, 1):
            await self._settled.wait(1.0)

    async def _flush(self) -> None:
        while True:
            self._heartbeats.beat("reporting")
            self._signals.reset()
            rows = await self._journal.outbox(0, self._batch_size)
            if not rows:
                return
            try:
                await self._post(rows)
            except ServiceError as error:
                await self._pause_after(error)
            else:
                if self._failures:
                    log(Event.EVENTS_RECOVERED)
                self._failures = 0
                if len(rows) < self._batch_size:
                    return

    async def _post(self, rows: Sequence[OutboxRow]) -> None:
        """Report these events; where the service refuses them, each half for itself.

        Not those that another worker may have taken over: the service might hear the last one's news first.
        """
        self._heartbeats.beat("reporting")
        await self._journal.renew()  # first, so that a service that is replaced meanwhile isn't in use
        try:
            await self._sink.report([row.body for row in rows], self._journal.renew)
        except ServiceRefused as error:
            if error.status not in ABOUT_THE_EVENTS:
                raise
            self._metrics.post_failed("refused")
            if len(rows) == 1:
                await self._set_aside(rows[0], str(error))
                return
            middle = len(rows) // 2
            await self._post(rows[:middle])
            await self._post(rows[middle:])
        else:
            reopened = await self._recorder.accept(rows)
            self._metrics.events_accepted(len(rows))
            log(Event.EVENTS_ACCEPTED, count=len(rows))
            if reopened:
                log(Event.MESSAGE_REOPENED, count=reopened)
            self._settled.set()

    async def _set_aside(self, row: OutboxRow, reason: str) -> None:
        refused = await self._recorder.refuse(row, reason)
        self._metrics.events_refused(1)
        if refused.times > 1:
            self._log_refused_again()
        else:
            log(Event.EVENTS_REFUSED, message_id=row.message_id, reason=f"{row.status}: {reason}")
        if refused.is_set_aside:
            cause = "the service refused its dequeued event"
            log(Event.MESSAGE_SET_ASIDE, message_id=row.message_id, reason=cause)
        self._settled.set()

    def _log_refused_again(self) -> None:
        """Log at most once an hour how many events were refused again: each was named the first time."""
        self._refused_again += 1
        if (now := anyio.current_time()) >= self._quiet_until:
            log(Event.EVENTS_REFUSED_AGAIN, count=self._refused_again)
            self._refused_again, self._quiet_until = 0, now + REFUSALS_LOG_INTERVAL

    async def _pause_after(self, error: ServiceError) -> None:
        self._failures += 1
        pause = backoff(1.0, LONGEST_REPORT_PAUSE, self._failures)
        if isinstance(error, ServiceUnavailable) and error.after is not None:
            pause = max(pause, error.after)
        self._metrics.post_failed("refused" if isinstance(error, ServiceRefused) else "unavailable")
        log(Event.EVENTS_UNAVAILABLE, reason=str(error), delay=pause)
        await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        """Wait, and keep turning; the end of the worker ends it."""
        ends = anyio.current_time() + seconds
        while (left := ends - anyio.current_time()) > 0:
            self._heartbeats.beat("reporting")
            if await self._signals.hurried.wait(min(left, HEARTBEAT_INTERVAL)):
                return
