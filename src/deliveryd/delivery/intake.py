"""Intake: take batches from the queue, as many as there are free places, and record them in the journal.

Beyond them it takes ahead (`queue.take_ahead`): that waits in the journal for places, and takes turns there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel

from deliveryd.delivery.common import Common
from deliveryd.errors import ServiceError, ServiceRefused, ServiceUnavailable, ServiceUnreadable
from deliveryd.metrics import FailureKind
from deliveryd.model import Malformed
from deliveryd.runtime.breaker import backoff
from deliveryd.runtime.waits import ANY
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent, wait_while_running
from deliveryd.service.batch import Batch
from deliveryd.service.caller import Ready
from deliveryd.telemetry.log_events import Event, log

TOP_UP = 0.1
"""Seconds that intake waits for room for a whole batch before it takes a smaller one."""

NO_ROOM_PAUSE = 1.0
"""Seconds between checks for room, in the journal or on its disk."""

MOST_LOGGED = 5
"""Malformed elements of one batch that the log names; all of them are in the journal."""

MOST_EXTRA = 1000
"""How many more are taken, at most, to get past elements that can't be reported to the service."""

TOO_SLOW = frozenset({408, 504})
"""Statuses with which a service, or a proxy before it, reports that its answer took too long."""

RECORDED_WITHIN = 5.0
"""Seconds in which a batch has to be recorded once the worker ends, if its answer is there."""

CALM = 20
"""Full answers in a row after which a batch that had to be smaller grows towards a size that failed."""


class Queue(Protocol):
    """Where messages come from."""

    async def take(self, count: int, ready: Ready) -> Batch:
        """Take up to `count` messages. `ready` is awaited before each request, the repeated ones too."""


class TakeSize:
    """How many messages to ask for: half as many after each answer that was too large or too slow to come.

    It grows with full answers: twofold while that stays below the size that failed, beyond that by an eighth
    after every `CALM` of them, since each answer that fails may lose messages.
    """

    def __init__(self, most: int) -> None:
        self.now = most
        self._most = most
        self._failed = 2 * most
        self._full = 0

    def fell_short(self, asked: int) -> None:
        """An answer to a request for this many didn't come whole."""
        self._failed = asked if asked > 1 else 2 * self._most  # of one message, the size isn't the reason
        self.now = max(min(self.now, asked) // 2, 1)
        self._full = 0

    def came_whole(self, asked: int, size: int) -> None:
        """An answer came whole; one with less than was requested shows nothing of larger ones."""
        if self.now == self._most or not size >= asked >= self.now:
            return
        self._full += 1
        if 2 * self.now < self._failed:
            grown = 2 * self.now
        elif self._full >= CALM:
            grown = self.now + max(self.now // 8, 1)
        else:
            return
        self.now, self._full = min(grown, self._most), 0


class Intake:
    """The loop from the queue into the journal. `answered_within`: seconds from a request to its time-out."""

    def __init__(
        self,
        queue: Queue,
        common: Common,
        *,
        batch_size: int,
        take_ahead: int,
        poll_interval: float,
        max_poll_interval: float,
        answered_within: float,
    ) -> None:
        self._queue = queue
        self._journal = common.journal
        self._recorder = common.recorder
        self._in_flight = common.memory.in_flight
        self._backlog = common.memory.backlog
        self._outbox = common.memory.outbox
        self._pauses_in_force = common.memory.pauses
        self._metrics = common.metrics
        self._heartbeats = common.heartbeats
        self._batch_size = batch_size
        self._size = TakeSize(batch_size)
        self._take_ahead = take_ahead
        self._is_ahead = False  # whether what is asked for has no places
        self._pause_ends = 0.0  # the event loop's time
        self._extra = 0
        self._poll_interval = poll_interval
        self._max_poll_interval = max_poll_interval
        self._answered_within = answered_within
        self._pauses = 0
        self._malformed_before: set[int] = set()
        self._down = False
        self._paused = False
        self._stopping = False
        self._stop_event = AutoResetEvent()
        self._taking = anyio.CancelScope()
        self._taken = anyio.Event()
        self._asked = 0  # for how many, of which nothing is known or recorded yet
        self._answered_by = 0.0  # the event loop's time
        self.found_empty = False
        """Whether the queue's last answer held nothing new."""

        self.lost_a_batch = False
        """Whether a batch may be lost of which the journal has no record."""

    @property
    def down(self) -> bool:
        """Whether the queue's last answer was none."""
        return self._down

    def stop(self) -> None:
        """Take no more; a request that is under way is finished, and not repeated."""
        self._stopping = True
        self._stop_event.set()
        self._in_flight.freed.set()

    @property
    def answer_due(self) -> float:
        """Seconds until an answer that was asked for is there, or its time-out is over; 0: none was."""
        return max(self._answered_by - anyio.current_time(), 0.0) if self._asked else 0.0

    async def end(self) -> None:
        """Take no more; end a take that is under way, but wait for an answer that was asked for.

        Nothing else cancels such a take. While the process is suspended its time doesn't pass.
        """
        self.stop()
        if self._asked:
            await wait_while_running(self._taken, self.answer_due + RECORDED_WITHIN)
        self._taking.cancel()

    def give_up(self, reason: str) -> None:
        """Log that a batch may be lost, if one was requested that isn't recorded."""
        if self._asked:
            self._metrics.lost.add()
            log(Event.QUEUE_BATCH_LOST, asked=self._asked, kept=0, reason=reason)
            self._asked = 0
            self.lost_a_batch = True

    def adopt(
        self,
        *,
        batch_size: int,
        take_ahead: int,
        poll_interval: float,
        max_poll_interval: float,
        answered_within: float,
    ) -> None:
        """Take by other limits from now on; a pause ends at once. A take that is under way keeps its own."""
        if batch_size != self._batch_size:
            self._batch_size = batch_size
            self._size = TakeSize(batch_size)
        self._take_ahead = take_ahead
        self._poll_interval = poll_interval
        self._max_poll_interval = max_poll_interval
        self._answered_within = answered_within
        self._pauses = 0
        self._pause_ends = 0.0
        self._stop_event.set()

    async def run(self) -> None:
        """Take until stopped."""
        while not self._stopping:
            self._heartbeats.beat("intake")
            if count := await self._room():
                await self._sleep(await self._take(count))

    async def _take(self, count: int) -> float:
        """Take a batch and record it; return the seconds until the next one.

        The service hands out each batch once: from the request until its answer is recorded nothing cancels
        this but `end`, whatever ends the worker.
        """
        self._taken = anyio.Event()
        with anyio.CancelScope() as self._taking:
            try:
                return await self._take_and_record(count)
            finally:
                self._taken.set()
                if self._asked:
                    self.give_up("the worker ended before it was recorded")
        return 0.0

    async def _take_and_record(self, count: int) -> float:
        if not await self._may_take():
            return 0.0
        try:
            batch = await self._queue.take(count, partial(self._ask, count, self._answered_within))
        except ServiceError as error:
            self._asked = 0
            if isinstance(error, ServiceUnavailable) and error.status in TOO_SLOW:
                self._size.fell_short(count)
            return self._after_failure(error)
        if batch.fault is not None:
            return await self._after_loss(count, batch, batch.fault)
        self._recovered()
        self._metrics.answered(count, batch.size)
        new = await self._record(batch)
        self.found_empty = not new and batch.size < count
        self._size.came_whole(count, batch.size)
        nameless = min(batch.nameless, MOST_EXTRA)
        has_more_behind, self._extra = nameless > self._extra, nameless
        if batch.size < count or not (new or has_more_behind):
            return self._after(new)
        self._pauses = 0
        return 0.0

    async def _ask(self, count: int, answered_within: float) -> None:
        """Called before each request for a batch, also a repeated one, but not before that after a 401.

        The time for credentials and for that repeat is within `answered_within`.
        """
        self._asked, self._taking.shield = 0, False
        await self._journal.renew()
        if self._stopping:
            self._taking.cancel()
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._answered_by = anyio.current_time() + answered_within
        self._asked, self._taking.shield = count, True

    async def _may_take(self) -> bool:
        """Whether to take still, once this worker surely keeps what it takes.

        Between the service's answer and the commit no other worker could record a batch: a worker whose log
        another one has adopted mustn't request one.
        """
        await self._journal.renew()
        return not self._stopping and self._recorder.obstacle() is None

    async def _room(self) -> int:
        """How many to take now: a whole batch, or after a short wait whatever there is room for.

        Elements that can't be reported come on top of that: the queue may hold them until it ends, and they
        need no slots. If good messages come instead, they exceed `queue.max_in_flight` by that number, once.
        """
        self._set_paused(self._recorder.obstacle())
        if self._paused:
            await self._in_flight.freed.wait(NO_ROOM_PAUSE)
            return 0
        whole = min(self._size.now, self._in_flight.most)
        self._is_ahead = bool(self._take_ahead) and self._backlog.is_short_of_room(ANY)
        if self._is_ahead:  # those that wait for places come before new ones
            if not (room := self._room_ahead(whole)):
                await self._in_flight.freed.wait(TOP_UP)
            return room
        with anyio.move_on_after(TOP_UP):
            while (short := whole - self._in_flight.free_to_take) > 0 and not self._stopping:
                # As many events as places are missing are enough for a post: many small ones cost too much.
                self._outbox.hasten(max(short, whole // 2))
                await self._in_flight.freed.wait()
        if self._pauses_in_force.intake is not None:  # since the check above
            return 0
        room = min(whole, self._in_flight.free_to_take)
        if room < whole and (ahead := self._room_ahead(whole)):
            self._is_ahead = True
            return ahead
        return room + self._extra if room and not self._stopping else 0

    def _room_ahead(self, whole: int) -> int:
        """A whole batch to take beyond the places, if it may wait in the journal; else 0.

        While the service accepts no `dequeued`, no more are taken than there are places.
        """
        whole = min(whole, self._take_ahead)
        most = min(self._take_ahead - self._backlog.count, self._in_flight.most) - self._recorder.ahead
        return whole + self._extra if 0 < whole <= most and not self._stopping else 0

    def _set_paused(self, reason: str | None) -> None:
        if (reason is not None) is self._paused:
            return
        self._paused = reason is not None
        if reason is not None:
            log(Event.QUEUE_PAUSED, reason=reason)
        else:
            log(Event.QUEUE_RESUMED)

    async def _record(self, batch: Batch) -> int:
        """Record a batch; return how many of its messages are new."""
        lost = 0 if batch.fault is None else 1
        if not batch.size and not lost:
            self._asked = 0
            return 0
        new = len(await self._recorder.take(batch.messages, batch.malformed, lost, ahead=self._is_ahead))
        self._asked = 0
        if batch.size:
            repeated = len(batch.messages) - new
            self._metrics.taken(new, repeated, len(batch.malformed))
            log(Event.QUEUE_TAKEN, count=new, repeated=repeated, malformed=len(batch.malformed))
            self._log_malformed(batch.malformed)
        return new

    def _log_malformed(self, malformed: Sequence[Malformed]) -> None:
        """Log what is malformed, but not what the answer before held as well."""
        before, seen = self._malformed_before, {hash(bad.raw): bad for bad in malformed}
        self._malformed_before = set(seen)
        fresh = [bad for raw, bad in seen.items() if raw not in before]
        for bad in fresh[:MOST_LOGGED]:
            if bad.id is None:
                log(Event.QUEUE_ELEMENT_MALFORMED, reason=bad.reason)
            else:
                log(Event.QUEUE_ELEMENT_MALFORMED, reason=bad.reason, message_id=bad.id)

    def _after(self, new: int) -> float:
        """The pause after a batch that wasn't full: growing while nothing new comes, and never the same."""
        self._pauses = 0 if new else self._pauses + 1
        return self._backoff(least=0.8)

    async def _after_loss(self, asked: int, batch: Batch, fault: ServiceError) -> float:
        """Keep what came of a batch, and log that the rest may be lost; return the pause after it."""
        self._size.fell_short(asked)
        self._extra = 0
        self.found_empty = False
        self._metrics.lost.add()
        log(Event.QUEUE_BATCH_LOST, asked=asked, kept=batch.size, reason=str(fault))
        if batch.size:
            self._recovered()
        else:
            self._down = True
            self._metrics.take_failures.add(failure_of(fault))
        return self._after(await self._record(batch))

    def _after_failure(self, error: ServiceError) -> float:
        self._pauses += 1
        pause = self._backoff(least=0.5)
        if isinstance(error, ServiceUnavailable) and error.after is not None:
            pause = max(pause, error.after)
        self._metrics.take_failures.add(failure_of(error))
        log(Event.QUEUE_UNAVAILABLE, reason=str(error), delay=pause)
        self._down = True
        return pause

    def _recovered(self) -> None:
        if self._down:
            self._down = False
            self._pauses = 0
            log(Event.QUEUE_RESUMED)

    def _backoff(self, least: float) -> float:
        return backoff(self._poll_interval, self._max_poll_interval, self._pauses + 1, least=least)

    async def _sleep(self, seconds: float) -> None:
        """Pause, and keep turning."""
        self._pause_ends = anyio.current_time() + seconds
        while not self._stopping and (left := self._pause_ends - anyio.current_time()) > 0:
            self._heartbeats.beat("intake")
            await self._stop_event.wait(min(left, HEARTBEAT_INTERVAL))


def failure_of(error: ServiceError) -> FailureKind:
    """The word that the metrics have for an error of the service."""
    if isinstance(error, ServiceRefused):
        return "refused"
    return "unreadable" if isinstance(error, ServiceUnreadable) else "unavailable"
