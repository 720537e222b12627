"""Records receipts: those that come in side by side share an operation of the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel

from deliveryd.errors import JournalError
from deliveryd.journal.base import Journal, MatchedReceipt
from deliveryd.journal.orders import Effect
from deliveryd.model import Receipt


class _Batch:
    """Receipts that are recorded together. `results` stays None when they couldn't be."""

    __slots__ = ("done", "receipts", "results")

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []
        self.results: Sequence[MatchedReceipt] | None = None
        self.done = anyio.Event()


class ReceiptBatcher:
    """Records receipts, and lets the line know of what they moved."""

    def __init__(self, journal: Journal, on_moved: Callable[[Sequence[Effect]], None]) -> None:
        self._journal = journal
        self._on_moved = on_moved
        self._open = _Batch()

    async def record(self, receipt: Receipt) -> str | None:
        """Return what a receipt did, once that is durable; None: it can't be recorded now.

        The first one of a batch sees to it that all are recorded; the others wait for it.
        """
        batch = self._open
        place = len(batch.receipts)
        batch.receipts.append(receipt)
        if place == 0:
            await self._record(batch)
        else:
            await batch.done.wait()
        return batch.results[place].result if batch.results is not None else None

    async def _record(self, batch: _Batch) -> None:
        try:
            try:
                await anyio.lowlevel.checkpoint()  # the others of this turn of the loop come along
            finally:
                self._open = _Batch()
            with suppress(JournalError, OSError):
                if self._journal.has_room():  # the reserve is for outcomes, which nobody tells twice
                    batch.results = await self._journal.receive(batch.receipts)
                    self._tell_the_line(batch.results)
        finally:
            batch.done.set()

    def _tell_the_line(self, results: Sequence[MatchedReceipt]) -> None:
        if moved := [effect for _result, effect in results if effect is not None]:
            self._on_moved(moved)
