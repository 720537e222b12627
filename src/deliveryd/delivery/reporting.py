"""Reporting: bring the journal's outbox to the service, in order, in batches, until each event is accepted.

Where the service refuses a batch, the events that it refuses are found and set aside; the others go on. An
outage changes nothing: the outbox waits.
"""

from __future__ import annotations

from deliveryd.delivery.posting import EventSink, Posting
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.refusal_search import RefusalSearch
from deliveryd.errors import ServiceError
from deliveryd.journal.base import Journal
from deliveryd.metrics import Metrics
from deliveryd.runtime.wakeup import Heartbeats


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
        self._posting = Posting(sink, journal, recorder, metrics, heartbeats)
        self._journal = journal
        self._signals = recorder.outbox
        self._heartbeats = heartbeats
        self._batch_size = batch_size
        self._flush_interval = flush_interval

    @property
    def down(self) -> bool:
        """Whether the last attempt to report failed."""
        return self._posting.down

    def adopt(self, *, batch_size: int, flush_interval: float) -> None:
        """Report by other limits from now on."""
        if batch_size != self._batch_size:
            self._batch_size = batch_size
            self._signals.change_batches(batch_size)
        self._flush_interval = flush_interval
        self._posting.forget_size()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self._heartbeats.beat("reporting")
            await self._signals.wait(self._flush_interval)
            await self._flush()

    async def flushed(self) -> None:
        """Return when nothing waits in the outbox any more; `run` does the reporting meanwhile."""
        while await self._journal.outbox(0, 1):
            await self._posting.settled.wait(1.0)

    async def _flush(self) -> None:
        """Report what waits, until the outbox has less than a batch."""
        is_full = True
        while is_full:
            self._heartbeats.beat("reporting")
            self._signals.reset()
            waiting = await self._journal.outbox(0, self._batch_size)
            if not waiting:
                return
            try:
                refused = await self._posting.report(waiting)
            except ServiceError:
                continue
            if refused:
                search = RefusalSearch(self._posting, self._journal, self._signals)
                await search.run(refused, self._batch_size, self._flush_interval)
            is_full = len(waiting) == self._batch_size or self._posting.is_limited
