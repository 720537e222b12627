"""What the line knows in memory beside the journal: the recorder has it follow each write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.in_flight import InFlightLimit
from deliveryd.delivery.limits import SendingLimits
from deliveryd.delivery.line_clock import LineClock
from deliveryd.delivery.outbox_signals import OutboxSignals
from deliveryd.delivery.passed_time import PassedTime
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.pausing import Pausing
from deliveryd.delivery.safety import Safety
from deliveryd.delivery.shares import Shares
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.journal.base import MatchedReceipt, OutboxRow
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Decided, Order
from deliveryd.metrics import Metrics
from deliveryd.model import Entry, Reported, SteadyClock, Transition
from deliveryd.runtime.wakeup import AutoResetEvent


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


class ReadyMessages:
    """The messages that are to be prepared: new ones, those that are due, and those to be routed again."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._added = AutoResetEvent()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: Sequence[Entry]) -> None:
        """Have these messages prepared."""
        if entries:
            self._entries += entries
            self._added.set()

    def wake(self) -> None:
        """Have messages go on that were prepared in part: what they needed is there."""
        self._added.set()

    async def wait(self) -> None:
        """Wait for messages, a moment at most."""
        await self._added.wait()

    def take(self) -> Sequence[Entry]:
        """The messages that were added since the last call."""
        entries, self._entries = self._entries, []
        return entries


class LineMemory(NamedTuple):
    """The places in flight, the signals between the loops, what waits or is paused, and what isn't sent.

    Each of the `watchers` is called after each record; `passed` has the age of records. `shares`: those
    of slow providers.
    """

    clock: LineClock
    in_flight: InFlightLimit
    outbox: OutboxSignals
    ready: ReadyMessages
    backlog: Backlog
    pausing: Pausing
    stopped: StoppedRecipients
    safety: Safety
    shares: Shares
    limits: SendingLimits
    passed: PassedTime
    watchers: list[Watcher]

    @classmethod
    def beside(
        cls,
        journal: Journal,
        shown: SteadyClock,
        metrics: Metrics,
        *,
        max_in_flight: int,
        batch_size: int,
        max_waiting: int,
        max_paused: int | None = None,
    ) -> Self:
        """The memory beside a journal that was opened; `Recorder.recover` fills it.

        `shown`: see `LineClock`. `batch_size`: how many events are a full batch.
        """
        in_flight, backlog = InFlightLimit(max_in_flight), Backlog(max_waiting, max_paused)
        clock = LineClock(shown, backlog.changed)
        return cls(
            clock,
            in_flight,
            OutboxSignals(batch_size),
            ReadyMessages(),
            backlog,
            Pausing(journal, backlog, in_flight, clock),
            StoppedRecipients(journal.stop_key, metrics),
            Safety(),
            Shares(),
            SendingLimits(journal.stop_key),
            PassedTime(shown, journal.kept_clock, journal.last_at),
            [],
        )

    @property
    def is_idle(self) -> bool:
        """Whether no message is held and none waits, but those that are paused."""
        return not self.in_flight.held and not self.backlog.count

    @property
    def pauses(self) -> Pauses:
        """What is paused."""
        return self.pausing.pauses
