"""Signals to the outbox: when the events in it are to be posted."""

from __future__ import annotations

from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent


class OutboxSignals:
    """Events are posted when a batch is full, after the flush interval, or at once if something waits."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._enough = batch_size
        self._waiting = 0
        self._begun = AutoResetEvent()
        self._full = AutoResetEvent()
        self._hurry = False
        self.hurried = AutoResetEvent()

    def change_batches(self, batch_size: int) -> None:
        """Change how many events are a full batch; those that wait are posted at once."""
        self._batch_size = self._enough = batch_size
        self._full.set()

    def go_on(self) -> None:
        """End a pause after a failure: the service is another one, or its credentials are."""
        self.hurried.set()

    def expect(self, events: int) -> None:
        """Count events that entered the outbox; they are posted with a batch."""
        self._waiting += events
        self._begun.set()
        self._set_if_full()

    def expect_now(self, events: int) -> None:
        """Count events that entered the outbox, and have them posted at once."""
        self._waiting += events
        self._begun.set()
        self._full.set()

    def hasten(self, events: int) -> None:
        """Make this many events enough for the next post: places that they free are waited for."""
        self._enough = min(events, self._batch_size)
        self._set_if_full()

    def hurry(self) -> None:
        """Have all events posted at once from now on: the worker is about to end."""
        self._hurry = True
        self.hurried.set()
        self._begun.set()
        self._full.set()

    async def wait(self, flush_interval: float) -> None:
        """Wait until the outbox is to be posted, or looked through."""
        if await self._begun.wait(HEARTBEAT_INTERVAL) and not self._hurry:
            await self._full.wait(flush_interval)

    def reset(self) -> int:
        """Begin to count again, since a batch is being read; return how many events entered the outbox."""
        waiting, self._waiting, self._enough = self._waiting, 0, self._batch_size
        return waiting

    def _set_if_full(self) -> None:
        if self._waiting >= self._enough:
            self._full.set()
