"""Posts events to the service, pauses after failures, and records what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

import anyio

from deliveryd.delivery.common import Common
from deliveryd.errors import ServiceError, ServiceRefused, ServiceUnavailable
from deliveryd.journal.base import OutboxRow
from deliveryd.runtime.breaker import backoff
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent
from deliveryd.service.caller import Ready
from deliveryd.telemetry.log_events import Event, log

TOO_LARGE = 413

ABOUT_THE_EVENTS = frozenset({400, 409, TOO_LARGE, 422})
"""Refusals that concern the events: each is final for an event that is posted alone."""

ASKS_TO_WAIT = frozenset({408, 425, 429, 503})
"""Answers that concern the service's load, and never the events."""

LONGEST_REPORT_PAUSE = 30.0

FAILURES_IN_FULL = 3
"""Failures in a row before smaller posts find out whether the service fails at some events only."""

MOST_FAILED_POSTS = 20
"""Failed posts of several events without an acceptance between them, after which it is an outage."""

REFUSALS_LOG_INTERVAL = 3600.0
"""Seconds after which is logged again how many events the service keeps refusing."""


class EventSink(Protocol):
    """Where events go."""

    async def report(self, bodies: Sequence[str], ready: Ready) -> None:
        """Report a batch. `ready` is awaited before each request, the repeated ones too."""


class PostAnswer(Enum):
    """What became of a post."""

    ACCEPTED = auto()
    REFUSED = auto()
    """The service refuses at least one of the events for good."""
    AT_FAULT = auto()
    """The service fails at these events, and accepts others."""
    UNAVAILABLE = auto()
    """It failed, and nothing shows that it is about the events."""


class Posted(NamedTuple):
    """The answer to a post, and the service's reason if it didn't accept it."""

    answer: PostAnswer
    reason: str = ""


class Posting:
    """One post at a time or several, with one pause for all after a failure.

    A failure is the events' fault if some of them failed before, and others were accepted since. While the
    service accepts nothing, posts get smaller, so that one without the events at fault is found.
    """

    def __init__(self, sink: EventSink, common: Common) -> None:
        self._sink = sink
        self.journal = common.journal
        self.signals = common.memory.outbox
        self.heartbeats = common.heartbeats
        self._recorder = common.recorder
        self._metrics = common.metrics
        self._most_bytes: int | None = None
        self._most_events: int | None = None
        self._acceptances = 0
        self._failed: dict[int, int] = {}  # by message: acceptances before its first failure
        self._failures = 0
        self._in_a_row = 0
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
        """Whether a post may have less than a batch, for what the service answered."""
        return self._most_bytes is not None or self.is_searching

    @property
    def is_searching(self) -> bool:
        """Whether posts are small, to find some events that the service accepts."""
        return self._most_events is not None

    def forget_size(self) -> None:
        """Try larger posts again than the service took: it may be another one."""
        self._most_bytes = None

    def size(self, batch_size: int) -> int:
        """How many events a post may have."""
        if self._most_events is not None and self._most_events >= batch_size:
            self._most_events = None
        return self._most_events or batch_size

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

    async def ask(self, rows: Sequence[OutboxRow]) -> Posted:
        """Post events once, and pause if the service is unavailable.

        Not those that another worker may have taken over: the service might receive that worker's first.
        """
        if self._pausing.locked():
            async with self._pausing:
                pass
        pauses = self._pauses
        self.heartbeats.beat("reporting")
        await self.journal.renew()  # first, so that a service that is replaced meanwhile isn't in use
        self._metrics.posted(len(rows))
        try:
            await self._sink.report([row.body for row in rows], self.journal.renew)
        except ServiceError as error:
            return await self._failed_with(error, rows, pauses)
        self._acceptances += 1
        self._in_a_row = 0
        if self._failed:
            for row in rows:
                self._failed.pop(row.message_id, None)
        if self._most_events is not None:
            self._most_events *= 2
        self._works()
        return Posted(PostAnswer.ACCEPTED)

    def _works(self) -> None:
        """The service answered, and the answer is about the events."""
        if self._failures:
            log(Event.EVENTS_RECOVERED)
        self._failures = 0

    async def _failed_with(self, error: ServiceError, rows: Sequence[OutboxRow], pauses: int) -> Posted:
        if isinstance(error, ServiceRefused) and error.status in ABOUT_THE_EVENTS:
            self._metrics.post_failures.add("refused")
            self._learn(rows, error)
            self._works()
            if len(rows) == 1:  # it is set aside, and a later event of its message is another matter
                self._failed.pop(rows[0].message_id, None)
            return Posted(PostAnswer.REFUSED, str(error))
        self._metrics.post_failures.add("refused" if isinstance(error, ServiceRefused) else "unavailable")
        if _may_be_about_the_events(error) and self._is_theirs(rows):
            return Posted(PostAnswer.AT_FAULT, str(error))
        await self._pause_after(error, rows, pauses)
        return Posted(PostAnswer.UNAVAILABLE, str(error))

    def _is_theirs(self, rows: Sequence[OutboxRow]) -> bool:
        """Whether a failure is these events' fault: note it, so that their parts are known to have failed."""
        before = [self._failed[row.message_id] for row in rows if row.message_id in self._failed]
        first = min(before, default=self._acceptances)
        for row in rows:
            self._failed.setdefault(row.message_id, first)
        if len(rows) > 1:
            self._in_a_row += 1
        return first < self._acceptances and (len(rows) == 1 or self._in_a_row <= MOST_FAILED_POSTS)

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

    async def accept(self, rows: Sequence[OutboxRow]) -> None:
        """Record that the service accepted events that have nothing ahead of them."""
        self._accepted(rows, await self._recorder.accept(rows))
        self.settled.set()

    async def accept_early(self, rows: Sequence[OutboxRow]) -> None:
        """Record that the service accepted events, before what is ahead of them is settled."""
        self._accepted(rows, await self._recorder.accept_early(rows))

    def _accepted(self, rows: Sequence[OutboxRow], reopened: int) -> None:
        self._metrics.events_accepted.add(count=len(rows))
        log(Event.EVENTS_ACCEPTED, count=len(rows))
        if reopened:
            log(Event.MESSAGE_REOPENED, count=reopened)

    async def settle(self, rows: Sequence[OutboxRow]) -> None:
        """Settle events that were accepted early, now that nothing is ahead of them."""
        await self._recorder.settle(rows)
        self.settled.set()

    def keep_back(self, row: OutboxRow) -> None:
        """Let the message of an event that the service fails at take no place meanwhile."""
        self._recorder.keep_back(row)

    async def set_aside(self, row: OutboxRow, reason: str) -> None:
        """Record that the service refused an event that has nothing ahead of it."""
        refused = await self._recorder.refuse(row, reason)
        if refused.times:
            self._metrics.events_refused.add()
        if refused.times > 1:
            self._log_refused_again()
        elif refused.times:
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

    async def _pause_after(self, error: ServiceError, rows: Sequence[OutboxRow], pauses: int) -> None:
        """Wait after a failure, unless another post did since this one began, after `pauses` of them."""
        async with self._pausing:
            if pauses != self._pauses:
                return
            self._failures += 1
            if self._failures >= FAILURES_IN_FULL and _may_be_about_the_events(error):
                self._most_events = max(len(rows) // 2, 1)
            pause = backoff(1.0, LONGEST_REPORT_PAUSE, self._failures)
            if isinstance(error, ServiceUnavailable) and error.after is not None:
                pause = max(pause, error.after)
            log(Event.EVENTS_UNAVAILABLE, reason=str(error), delay=pause)
            await self._pause(pause)
            self._pauses += 1

    async def _pause(self, seconds: float) -> None:
        """Wait, and keep turning; the end of the worker ends it."""
        ends = anyio.current_time() + seconds
        while (left := ends - anyio.current_time()) > 0:
            self.heartbeats.beat("reporting")
            if await self.signals.hurried.wait(min(left, HEARTBEAT_INTERVAL)):
                return


def _size(row: OutboxRow) -> int:
    """Bytes of an event in a post, with its comma."""
    return len(row.body.encode()) + 1


def _may_be_about_the_events(error: ServiceError) -> bool:
    """Whether the same post may fail for ever while others are accepted."""
    if isinstance(error, ServiceUnavailable):
        return error.was_sent and error.after is None and error.status not in ASKS_TO_WAIT
    return True
