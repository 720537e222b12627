"""Records reports: those that come in side by side share an operation of the journal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel

from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import JournalError
from deliveryd.journal.base import MatchedReceipt
from deliveryd.model import OptOut, Reported


class _Batch:
    """Reports that are recorded together. `results` stays None when they couldn't be.

    They are in the order of the reports, then of the opt-outs.
    """

    __slots__ = ("done", "opt_outs", "reports", "results")

    def __init__(self) -> None:
        self.reports: list[Reported] = []
        self.opt_outs: list[OptOut] = []
        self.results: Sequence[MatchedReceipt] | None = None
        self.done = anyio.Event()


class ReceiptBatcher:
    """Gathers reports that come in during one turn of the event loop."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open = _Batch()

    async def record(
        self, reports: Sequence[Reported], opt_outs: Sequence[OptOut] = ()
    ) -> Sequence[str] | None:
        """Return what each report of a request did, once all are durable; None: they can't be recorded now.

        The caller of a batch's first report records all of it; the others wait.
        """
        batch = self._open
        place, opt_out_place = len(batch.reports), len(batch.opt_outs)
        batch.reports += reports
        batch.opt_outs += opt_outs
        if place + opt_out_place == 0:
            await self._record(batch)
        else:
            await batch.done.wait()
        if batch.results is None:
            return None
        begin = len(batch.reports) + opt_out_place
        own = (batch.results[place : place + len(reports)], batch.results[begin : begin + len(opt_outs)])
        return [each.result for part in own for each in part]

    async def _record(self, batch: _Batch) -> None:
        try:
            try:
                await anyio.lowlevel.checkpoint()  # the others of this turn of the loop come along
            finally:
                self._open = _Batch()
            with suppress(JournalError, OSError):
                batch.results = await self._recorder.receive(batch.reports, batch.opt_outs)
        finally:
            batch.done.set()
