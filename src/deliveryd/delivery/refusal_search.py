"""Finds the events for which the service refuses a batch, while all others go on.

A refused group is split into parts of about the square root of its size. They are posted at the same time,
and split in their turn, until an event is refused alone. The events of one message stay together, in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import isqrt

import anyio
from anyio.abc import TaskGroup

from deliveryd.delivery.outbox_signals import OutboxSignals
from deliveryd.delivery.posting import Posting
from deliveryd.delivery.unsettled import Unsettled
from deliveryd.errors import ServiceError
from deliveryd.journal.base import Journal, OutboxRow

MOST_POSTS = 16
"""Most posts at a time of parts of refused groups; new events are posted beside them, one batch at a time."""

MOST_UNSETTLED = 4
"""Full batches that may be read before the first of them is settled."""


class RefusalSearch:
    """One search, from a refused batch until everything that was read meanwhile is settled."""

    def __init__(self, posting: Posting, journal: Journal, signals: OutboxSignals) -> None:
        self._posting = posting
        self._journal = journal
        self._signals = signals
        self._unsettled = Unsettled()
        self._settling = anyio.Lock()
        self._turns = anyio.CapacityLimiter(MOST_POSTS)

    async def run(self, refused: Sequence[OutboxRow], batch_size: int, flush_interval: float) -> None:
        """Settle a batch that was refused, and report new events until nothing is left of it."""
        async with anyio.create_task_group() as posts:
            self._unsettled.read(refused)
            self._unsettled.post(refused)
            self._split(posts, refused)
            while self._unsettled:
                self._signals.reset()
                if rows := await self._next(batch_size):
                    await self._post(posts, rows)
                else:
                    await self._signals.wait(flush_interval)

    async def _next(self, batch_size: int) -> Sequence[OutboxRow]:
        """Read new events, and return those that may be posted now, a batch at most."""
        async with self._settling:  # else what is settled meanwhile would be taken for new
            if len(self._unsettled) < MOST_UNSETTLED * batch_size:
                limit = len(self._unsettled) + batch_size
                self._unsettled.read(await self._journal.outbox(0, limit))
            rows = self._posting.fitting(self._unsettled.unposted()[:batch_size])
            self._unsettled.post(rows)
            return rows

    async def _post(self, posts: TaskGroup, rows: Sequence[OutboxRow]) -> None:
        refused = await self._ask(rows)
        if refused is not None and len(rows) > 1:
            self._split(posts, rows)
            return
        if refused is None:
            await self._posting.accept_early(rows)
        self._unsettled.answer(rows, refused)
        await self._settle()

    async def _ask(self, rows: Sequence[OutboxRow]) -> str | None:
        while True:
            try:
                return await self._posting.ask(rows)
            except ServiceError:
                continue  # it paused

    def _split(self, posts: TaskGroup, rows: Sequence[OutboxRow]) -> None:
        """Post the parts of a refused group."""
        by_message: defaultdict[int, list[OutboxRow]] = defaultdict(list)
        for row in rows:
            by_message[row.message_id].append(row)
        messages = list(by_message.values())
        if len(messages) == 1:
            posts.start_soon(self._post_in_turn, posts, [[row] for row in rows])
            return
        size = isqrt(len(messages))
        for first in range(0, len(messages), size):
            part = [row for message in messages[first : first + size] for row in message]
            posts.start_soon(self._post_in_turn, posts, [part])

    async def _post_in_turn(self, posts: TaskGroup, parts: Sequence[Sequence[OutboxRow]]) -> None:
        for part in parts:
            async with self._turns:
                await self._post(posts, part)

    async def _settle(self) -> None:
        async with self._settling:
            for rows, refused in self._unsettled.in_turn():
                if refused is None:
                    await self._posting.settle(rows)
                else:
                    await self._posting.set_aside(rows[0], refused)
        self._signals.expect_now(0)  # what was behind them may be posted now
