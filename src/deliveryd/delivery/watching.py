"""What a watcher of the line is told: each step after it is durable. Without a watcher this costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from deliveryd.journal.base import MatchedReceipt, OutboxRow
from deliveryd.journal.orders import Decided, Order
from deliveryd.model import Entry, Reported, Transition


class Watcher(Protocol):
    """Follows what the recorder records. No method blocks or raises; instants are in microseconds."""

    def taken(self, entries: Sequence[Entry], at: int) -> None:
        """Messages are in the journal for the first time."""

    def due(self, entries: Sequence[Entry], at: int) -> None:
        """Messages that waited are ready again."""

    def stepped(self, steps: Sequence[Transition]) -> None:
        """The line took these steps."""

    def reported(self, rows: Sequence[OutboxRow], at: int) -> None:
        """The service accepted these events."""

    def refused(self, row: OutboxRow, at: int) -> None:
        """The service refused this event for good."""

    def received(self, reports: Sequence[Reported], results: Sequence[MatchedReceipt], at: int) -> None:
        """Providers reported this; the results are in the order of the reports."""

    def decided(self, order: Order, decided: Decided, at: int) -> None:
        """An operator's order was carried out."""
