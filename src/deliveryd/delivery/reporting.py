"""Reporting: bring the journal's outbox to the service, in batches, until each event is accepted.

Where the service refuses a batch, or fails at one while it accepts others, the events at fault are found: the
batch is split into parts of about the square root of its size. They are posted at the same time, beside new
events, and split in their turn, until an event is alone. One that is refused is set aside; one that the
service fails at waits, and is posted alone after pauses that grow. An outage changes nothing: the outbox
waits. The events of one message stay in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from deliveryd.delivery.posting import PostAnswer, Posting
from deliveryd.delivery.unsettled import Unsettled
from deliveryd.journal.base import OutboxRow
from deliveryd.runtime.breaker import backoff
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL
from deliveryd.telemetry.log_events import Event, log

MOST_POSTS = 16
"""Most posts at a time of parts of batches; new events are posted beside them, one batch at a time."""

MOST_UNSETTLED = 4
"""Full batches that may be read before the first of them is settled."""

MOST_KEPT_BACK = 10_000
"""Events in memory that the service fails at, or may fail at, at most; new ones are read beside them."""

HELD_INTERVAL = 1.0
"""Seconds between two looks at their pauses."""

PUT_LAST_INTERVAL = 60.0
"""Seconds after which events that were answered are settled, though such events are ahead of them."""

FIRST_REPEAT, LONGEST_REPEAT = 5.0, 3600.0
"""Seconds between two posts of an event that the service fails at."""


class _Held(NamedTuple):
    """A message whose next event the service fails at: how often it did, and when it is posted again."""

    failures: int = 0
    due: float = 0.0


class Reporting:
    """The loop from the outbox to the service."""

    def __init__(self, posting: Posting, *, batch_size: int, flush_interval: float) -> None:
        self._posting = posting
        self._journal = posting.journal
        self._signals = posting.signals
        self._batch_size = batch_size
        self._flush_interval = flush_interval
        self._unsettled = Unsettled()
        self._settling = anyio.Lock(fast_acquire=True)  # without a turn of the loop, which may be long
        self._turns = anyio.CapacityLimiter(MOST_POSTS)
        self._held: dict[int, _Held] = {}  # by message
        self._more = True  # whether the outbox may have events that weren't read
        self._looked_through_at = self._held_at = self._put_last_at = float("-inf")
        self._behind = 0  # while it fails: the last number that was tried

    @property
    def down(self) -> bool:
        """Whether the last attempt to report failed."""
        return self._posting.down

    @property
    def failing(self) -> int:
        """How many messages have an event that the service fails at, while it accepts others."""
        return len(self._held)

    @property
    def unanswered(self) -> int:
        """How many events were read that the service has neither accepted nor refused."""
        return len(self._unsettled) - self._unsettled.answered

    def adopt(self, *, batch_size: int, flush_interval: float) -> None:
        """Report by other limits from now on."""
        if batch_size != self._batch_size:
            self._batch_size = batch_size
            self._signals.change_batches(batch_size)
        self._flush_interval = flush_interval
        self._posting.forget_size()

    async def run(self) -> None:
        """Report until cancelled."""
        async with anyio.create_task_group() as posts:
            while True:
                self._posting.heartbeats.beat("reporting")
                await self._signals.wait(self._flush_interval)
                await self._flush(posts)

    async def flushed(self) -> None:
        """Return when nothing waits in the outbox any more; `run` does the reporting meanwhile."""
        while await self._journal.outbox(0, 1):
            await self._posting.settled.wait(1.0)

    async def _flush(self, posts: TaskGroup) -> None:
        """Report what waits, until less than a batch is left of it."""
        is_full = True
        while is_full:
            self._posting.heartbeats.beat("reporting")
            self._more |= self._signals.reset() > 0
            self._post_held(posts)
            rows = await self._next()
            if not rows:
                return
            answer = await self._post(posts, rows)
            is_limited = answer is PostAnswer.UNAVAILABLE or self._posting.is_limited
            is_full = is_limited or self._may_read_on(answer) or len(rows) >= self._batch_size

    async def _next(self) -> Sequence[OutboxRow]:
        """Read new events, and return those that may be posted now, a batch at most."""
        async with self._settling:  # else what is settled meanwhile would be taken for new
            most = self._posting.size(self._batch_size)
            searched = 0
            if self._posting.is_searching:
                while await self._read():
                    pass
                searched = self._unsettled.anywhere(self._behind)
            while len(found := self._unsettled.first(most, self._held, searched)) < most:
                if not await self._read():
                    break
            found = found or self._unsettled.first(most, self._held)
            if not found and self._posting.down:
                found = self._due()[:1]  # no other event will show that the service works again
            rows = self._posting.fitting(found)
            self._unsettled.post(rows)
            return rows

    def _may_read_on(self, answer: PostAnswer) -> bool:
        """Whether there may be events that weren't read, and the answer may have made room for them."""
        return self._more and answer is not PostAnswer.AT_FAULT

    async def _read(self) -> bool:
        """Read a batch of the outbox, if there may be new events; return whether there may be more."""
        before, now = len(self._unsettled), anyio.current_time()
        if not before or now - self._looked_through_at >= HEARTBEAT_INTERVAL:
            await self._settle_behind_held()
            before = len(self._unsettled)
            after, limit = 0, before + (self._batch_size if before < self._most_unsettled() else 0)
            self._looked_through_at = now
        elif self._more and before < self._most_unsettled():
            after, limit = self._unsettled.last, self._batch_size
        else:
            return False
        rows = await self._journal.outbox(after, limit)
        self._more = len(rows) == limit
        self._unsettled.read(rows)
        return bool(rows)

    def _most_unsettled(self) -> int:
        """How many events may be in memory before more are read: all may fail that are searched now."""
        kept_back = MOST_KEPT_BACK if self._posting.is_searching else len(self._held)
        return MOST_UNSETTLED * self._batch_size + min(kept_back, MOST_KEPT_BACK)

    async def _post(self, posts: TaskGroup, rows: Sequence[OutboxRow]) -> PostAnswer:
        answer, reason = await self._posting.ask(rows)
        if answer is PostAnswer.UNAVAILABLE:
            self._behind = rows[-1].seq
            self._unsettled.take_back(rows)
        elif answer is PostAnswer.ACCEPTED:
            await self._answered(rows, None)
        elif len(rows) > 1:
            self._split(posts, rows)
        elif answer is PostAnswer.REFUSED:
            await self._answered(rows, reason)
        else:
            self._hold(rows[0], reason)
        return answer

    def _split(self, posts: TaskGroup, rows: Sequence[OutboxRow]) -> None:
        """Post the parts of a group of events, or the first one of a single message."""
        by_message: defaultdict[int, list[OutboxRow]] = defaultdict(list)
        for row in rows:
            by_message[row.message_id].append(row)
        messages = list(by_message.values())
        if len(messages) == 1:
            self._unsettled.take_back(rows[1:])
            messages = [[rows[0]]]
        size = isqrt(len(messages))
        for first in range(0, len(messages), size):
            part = [row for message in messages[first : first + size] for row in message]
            posts.start_soon(self._post_in_turn, posts, part)

    async def _post_in_turn(self, posts: TaskGroup, part: Sequence[OutboxRow]) -> None:
        async with self._turns:
            if not self._posting.down:
                answer = await self._post(posts, part)
                if self._may_read_on(answer):
                    self._signals.expect_now(0)
                return
        self._unsettled.take_back(part)
        self._signals.expect_now(0)

    def _hold(self, row: OutboxRow, reason: str) -> None:
        """Have an event wait that the service fails at alone."""
        failures = self._held.get(row.message_id, _Held()).failures + 1
        pause = backoff(FIRST_REPEAT, LONGEST_REPEAT, failures)
        self._held[row.message_id] = _Held(failures, anyio.current_time() + pause)
        self._unsettled.take_back([row])
        if len(self._held) <= MOST_KEPT_BACK:
            self._posting.keep_back(row)
        if failures == 1:
            why = f"{row.status}: {reason}"
            log(Event.EVENTS_FAILING, message_id=row.message_id, reason=why, delay=pause)

    def _post_held(self, posts: TaskGroup) -> None:
        """Post those events alone whose pauses are over."""
        now = anyio.current_time()
        if not self._held or self._posting.down or now < self._held_at + HELD_INTERVAL:
            return
        self._held_at = now
        room = max(int(self._turns.available_tokens) - MOST_POSTS // 2, 0)  # the others are for parts
        for row in self._due()[:room]:
            self._unsettled.post([row])
            posts.start_soon(self._post_in_turn, posts, [row])

    def _due(self) -> list[OutboxRow]:
        """The first event of each message whose pause is over."""
        now = anyio.current_time()
        due = {id_ for id_, held in self._held.items() if held.due <= now}
        return [row for row, *_ in self._unsettled.unposted_of(due)]

    async def _answered(self, rows: Sequence[OutboxRow], refused: str | None) -> None:
        """Record an answer, and settle what has nothing unanswered ahead of it."""
        for row in rows if self._held else ():
            self._held.pop(row.message_id, None)
        async with self._settling:
            if refused is None and self._unsettled.lead(rows):
                await self._posting.accept(rows)
                self._unsettled.remove(rows)
            else:
                if refused is None:
                    await self._posting.accept_early(rows)
                self._unsettled.answer(rows, refused)
            if self._unsettled.answered >= self._batch_size:
                await self._put_held_last()
            await self._settle()
        if self._unsettled.first(1, self._held):
            self._signals.expect_now(0)  # what was behind them may be posted now

    async def _settle(self) -> None:
        """Settle what was answered and has nothing unanswered ahead of it."""
        for settled, reason in self._unsettled.in_turn():
            if reason is None:
                await self._posting.settle(settled)
            else:
                await self._posting.set_aside(settled[0], reason)

    async def _settle_behind_held(self) -> None:
        """Let nothing be unread or unsettled for long that has held events ahead of it."""
        is_full = self._more and len(self._unsettled) >= self._most_unsettled()
        is_late = anyio.current_time() >= self._put_last_at + PUT_LAST_INTERVAL
        if is_full or (is_late and self._unsettled.answered):
            await self._put_held_last()
            await self._settle()

    async def _put_held_last(self) -> None:
        """Have held events wait behind all others."""
        if not (held := self._unsettled.unposted_of(self._held)):
            return
        for rows in held:
            self._unsettled.forget(rows)  # first: the pauses of some may end meanwhile
        await self._journal.put_last([rows[0] for rows in held])
        self._put_last_at = anyio.current_time()
        self._more = True
