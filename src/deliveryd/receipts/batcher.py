"""Records reports: those that come in side by side share an operation of the journal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel

from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import JournalError
from deliveryd.journal.base import MatchedReceipt
from deliveryd.model import Reported


class _Batch:
    """Reports that are recorded together. `results` stays None when they couldn't be."""

    __slots__ = ("done", "reports", "results")

    def __init__(self) -> None:
        self.reports: list[Reported] = []
        self.results: Sequence[MatchedReceipt] | None = None
        self.done = anyio.Event()


class ReceiptBatcher:
    """Gathers reports that come in during one turn of the event loop."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open = _Batch()

    async def record(self, reports: Sequence[Reported]) -> Sequence[str] | None:
        """Return what each report of a request did, once all are durable; None: they can't be recorded now.

        The caller of a batch's first report records all of it; the others wait.
        """
        batch = self._open
        place = len(batch.reports)
        batch.reports += reports
        if place == 0:
            await self._record(batch)
        else:
            await batch.done.wait()
        if batch.results is None:
            return None
        return [result for result, _effect in batch.results[place : place + len(reports)]]

    async def _record(self, batch: _Batch) -> None:
        try:
            try:
                await anyio.lowlevel.checkpoint()  # the others of this turn of the loop come along
            finally:
                self._open = _Batch()
            with suppress(JournalError, OSError):
                batch.results = await self._recorder.receive(batch.reports)
        finally:
            batch.done.set()
