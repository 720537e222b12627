"""Posts events to the service, waits out its outages, and records what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import anyio

from deliveryd.delivery.outbox_signals import OutboxSignals
from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import ServiceError, ServiceRefused, ServiceUnavailable
from deliveryd.journal.base import Journal, OutboxRow
from deliveryd.metrics import Metrics
from deliveryd.runtime.backoff import backoff
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent, Heartbeats
from deliveryd.service.caller import Ready
from deliveryd.telemetry.log_events import Event, log

TOO_LARGE = 413

ABOUT_THE_EVENTS = frozenset({400, 409, TOO_LARGE, 422})
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


class Posting:
    """One post at a time or several, with one pause for all after a failure."""

    def __init__(
        self,
        sink: EventSink,
        journal: Journal,
        recorder: Recorder,
        metrics: Metrics,
        heartbeats: Heartbeats,
    ) -> None:
        self._sink = sink
        self._journal = journal
        self._recorder = recorder
        self._signals: OutboxSignals = recorder.outbox
        self._metrics = metrics
        self._heartbeats = heartbeats
        self._most_bytes: int | None = None
        self._failures = 0
        self._pausing = anyio.Lock()
        self._pauses = 0
        self._refused_again = 0
        self._quiet_until = float("-inf")
        self.settled = AutoResetEvent()
        """Set when events were settled."""

    @property
    def down(self) -> bool:
        """Whether the last attempt to report failed."""
        return self._failures > 0

    @property
    def is_limited(self) -> bool:
        """Whether the service refused a size, so that a post may have less than a batch."""
        return self._most_bytes is not None

    def forget_size(self) -> None:
        """Try larger posts again than the service took: it may be another one."""
        self._most_bytes = None

    def fitting(self, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
        """The first of these rows, as many as fit into a post that the service takes; one at least."""
        if self._most_bytes is None:
            return rows
        left = self._most_bytes
        for count, row in enumerate(rows):
            left -= _size(row)
            if left < 0:
                return rows[: max(count, 1)]
        return rows

    async def report(self, waiting: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
        """Post as many of the oldest events as fit, and record the answer; raises like `ask`.

        Returns those that were refused together; which of them the service refuses is still to be found.
        """
        rows = self.fitting(waiting) if self.is_limited else waiting
        refused = await self.ask(rows)
        if refused is None:
            self._accepted(rows, await self._recorder.accept(rows))
        elif len(rows) > 1:
            return rows
        else:
            await self.set_aside(rows[0], refused)
        self.settled.set()
        return ()

    async def ask(self, rows: Sequence[OutboxRow]) -> str | None:
        """Post events once; return why the service refused these, or None: it accepted them.

        Not those that another worker may have taken over: the service might hear the last one's news first.
        Raises ServiceError, after a pause, where the answer isn't about the events.
        """
        if self._pausing.locked():
            async with self._pausing:
                pass
        pauses = self._pauses
        self._heartbeats.beat("reporting")
        await self._journal.renew()  # first, so that a service that is replaced meanwhile isn't in use
        self._metrics.events_posted(len(rows))
        try:
            await self._sink.report([row.body for row in rows], self._journal.renew)
        except ServiceError as error:
            if not isinstance(error, ServiceRefused) or error.status not in ABOUT_THE_EVENTS:
                await self._pause_after(error, pauses)
                raise
            self._metrics.post_failed("refused")
            self._learn(rows, error)
            refused: str | None = str(error)
        else:
            refused = None
        if self._failures:
            log(Event.EVENTS_RECOVERED)
        self._failures = 0
        return refused

    def _learn(self, rows: Sequence[OutboxRow], error: ServiceRefused) -> None:
        if error.status != TOO_LARGE:
            return
        if len(rows) == 1:  # it was this event, and not the number of them
            self.forget_size()
            return
        most = sum(map(_size, rows)) // 2
        if self._most_bytes is None or most < self._most_bytes:
            self._most_bytes = most
            log(Event.EVENTS_TOO_LARGE, count=len(rows), reason=f"{error}: at most {most} bytes from now on")

    async def accept_early(self, rows: Sequence[OutboxRow]) -> None:
        """Record that the service accepted events, before what is ahead of them is settled."""
        self._accepted(rows, await self._recorder.accept_early(rows))

    def _accepted(self, rows: Sequence[OutboxRow], reopened: int) -> None:
        self._metrics.events_accepted(len(rows))
        log(Event.EVENTS_ACCEPTED, count=len(rows))
        if reopened:
            log(Event.MESSAGE_REOPENED, count=reopened)

    async def settle(self, rows: Sequence[OutboxRow]) -> None:
        """Settle events that were accepted early, now that nothing is ahead of them."""
        await self._recorder.settle(rows)
        self.settled.set()

    async def set_aside(self, row: OutboxRow, reason: str) -> None:
        """Record that the service refused an event that has nothing ahead of it."""
        refused = await self._recorder.refuse(row, reason)
        self._metrics.events_refused(1)
        if refused.times > 1:
            self._log_refused_again()
        else:
            log(Event.EVENTS_REFUSED, message_id=row.message_id, reason=f"{row.status}: {reason}")
        if refused.is_set_aside:
            cause = "the service refused its dequeued event"
            log(Event.MESSAGE_SET_ASIDE, message_id=row.message_id, reason=cause)
        self.settled.set()

    def _log_refused_again(self) -> None:
        """Log at most once an hour how many events were refused again: each was named the first time."""
        self._refused_again += 1
        if (now := anyio.current_time()) >= self._quiet_until:
            log(Event.EVENTS_REFUSED_AGAIN, count=self._refused_again)
            self._refused_again, self._quiet_until = 0, now + REFUSALS_LOG_INTERVAL

    async def _pause_after(self, error: ServiceError, pauses: int) -> None:
        """Wait after a failure, unless another post did since this one began, after `pauses` of them."""
        async with self._pausing:
            if pauses != self._pauses:
                return
            self._failures += 1
            pause = backoff(1.0, LONGEST_REPORT_PAUSE, self._failures)
            if isinstance(error, ServiceUnavailable) and error.after is not None:
                pause = max(pause, error.after)
            self._metrics.post_failed("refused" if isinstance(error, ServiceRefused) else "unavailable")
            log(Event.EVENTS_UNAVAILABLE, reason=str(error), delay=pause)
            await self._pause(pause)
            self._pauses += 1

    async def _pause(self, seconds: float) -> None:
        """Wait, and keep turning; the end of the worker ends it."""
        ends = anyio.current_time() + seconds
        while (left := ends - anyio.current_time()) > 0:
            self._heartbeats.beat("reporting")
            if await self._signals.hurried.wait(min(left, HEARTBEAT_INTERVAL)):
                return


def _size(row: OutboxRow) -> int:
    """Bytes of an event in a post, with its comma."""
    return len(row.body.encode()) + 1
