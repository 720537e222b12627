"""Receipt deadlines: what was sent and isn't confirmed in time goes on to the next channel.

Deadlines are measured in listening time: how long receipts could be received. The journal keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

import anyio

from deliveryd.delivery.recorder import Recorder
from deliveryd.journal.base import PassedDeadlines
from deliveryd.journal.journal import Journal
from deliveryd.metrics import Metrics
from deliveryd.model import SECOND, Confirmation, channel_of
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent, Heartbeats
from deliveryd.telemetry.log_events import Event, log

TICK = 5.0
"""Seconds between two records of the listening time, while a deadline waits."""


UNRECORDED = 60.0
"""Seconds that the record of an acceptance may take, on a disk that is very slow."""


class ListeningTime:
    """How long receipts could be received so far, in microseconds.

    It stands still while no deadline waits, so that an idle worker records nothing. Where it may take over
    what other workers left, it goes on.
    """

    def __init__(self) -> None:
        self._total = 0
        self._since: float | None = None  # the event loop's time up to which it is counted; None: it stands
        self._accepted_at = float("-inf")  # the event loop's time of the last acceptance
        self.begun = AutoResetEvent()
        """Set when it goes on after it stood still."""

    @property
    def stands_still(self) -> bool:
        """Whether it stands still."""
        return self._since is None

    def start(self, total: int) -> None:
        """Go on from what the journal kept."""
        self._total = total
        self._since = anyio.current_time()

    def instant_in(self, microseconds: int) -> int:
        """The point of the listening time that lies so far ahead; a deadline waits from now on."""
        self._accepted_at = anyio.current_time()
        if self._since is None:
            self._since = self._accepted_at
            self.begun.set()
        return self._total + self._elapsed(self._since) + microseconds

    def _elapsed(self, since: float) -> int:
        """Microseconds to count; a process that was stopped for longer received nothing meanwhile."""
        return int(min(anyio.current_time() - since, 2 * TICK) * SECOND)

    def count(self) -> int:
        """Count on; return the microseconds since the last call."""
        if self._since is None:
            return 0
        elapsed = self._elapsed(self._since)
        self._total += elapsed
        self._since = anyio.current_time()
        return elapsed

    def skip(self) -> None:
        """Leave out the time since the last call of `count`: nothing could be received."""
        if self._since is not None:
            self._since = anyio.current_time()

    def until(self, instant: int) -> float:
        """Seconds until a point of the listening time."""
        return (instant - self._total) / SECOND

    def nothing_waits(self) -> None:
        """Stand still, unless a message was accepted a short while ago: it may not be recorded yet."""
        if anyio.current_time() >= self._accepted_at + UNRECORDED:
            self._since = None


class Awaited:
    """What messages that one provider accepts may still lead to.

    `within` is the length of their deadline in seconds; None: they have none. `failed_next`: a failure that
    is reported leads to the next channel.
    """

    def __init__(self, time: ListeningTime, within: float | None, *, failed_next: bool) -> None:
        self._time = time
        self._within = None if within is None else int(within * SECOND)
        self._failed_next = failed_next

    def confirmation(self) -> Confirmation:
        """The same for a message that is accepted now."""
        by = None if self._within is None else self._time.instant_in(self._within)
        return Confirmation(by, self._within, self._failed_next)


LENIENCE = 0.5
"""Seconds that are waited after a deadline, so that those that are close together pass together."""

PORTION = 500
PORTION_PAUSE = 0.1
"""Messages of a provider that go on together at most, and the seconds until the next portion."""


class ReceiptDeadlines:
    """The loop that watches the deadlines of `providers`."""

    def __init__(
        self,
        providers: Collection[str],
        time: ListeningTime,
        recorder: Recorder,
        metrics: Metrics,
        heartbeats: Heartbeats,
    ) -> None:
        self._providers = providers
        self._time = time
        self._recorder = recorder
        self._metrics = metrics
        self._heartbeats = heartbeats
        self._portion = PORTION
        self.silent: frozenset[str] = frozenset()
        """The providers that report nothing, so that their deadlines stand still."""

    @property
    def is_silent(self) -> Mapping[str, bool]:
        """Of each provider, whether its deadlines stand still."""
        return {name: name in self.silent for name in self._providers}

    def adopt(self, providers: Collection[str]) -> None:
        """Watch the deadlines of other providers from now on."""
        self._providers = providers
        self.silent &= frozenset(providers)
        self._time.begun.set()

    async def recover(self) -> None:
        """Go on with the listening time of an earlier run; after its messages, before any is accepted.

        The deadlines of providers that were removed since are dropped.
        """
        found = await self._recorder.pass_deadlines(0, self._providers, PORTION)
        while found.dropped and not found.is_complete:
            self._tell(found)
            found = await self._recorder.pass_deadlines(0, self._providers, PORTION)
        self._time.start(found.listened)
        self._follow(found)
        self._tell(found)

    def loops(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """What has to run: nothing if no provider reports."""
        return (self.run,) if self._providers else ()

    def stop(self) -> None:
        """Send nothing more on: the worker is about to end, and the next start goes on.

        Receipts are received until the end, so that the listening time is counted on.
        """
        self._portion = 0

    async def run(self) -> None:
        """Watch until cancelled."""
        pause = 0.0
        while True:
            self._heartbeats.beat("deadlines")
            await self._time.begun.wait(pause)
            pause = HEARTBEAT_INTERVAL if self._time.stands_still else await self._pass()

    async def _pass(self) -> float:
        """Send on what wasn't confirmed in time; return the seconds until the next look."""
        if not self._recorder.takes_receipts:
            self._time.skip()
            return TICK
        found = await self._recorder.pass_deadlines(self._time.count(), self._providers, self._portion)
        self._tell(found)
        self._follow(found)
        if not found.is_complete and self._portion:
            return PORTION_PAUSE
        if found.next_by is None or not self._portion:
            return TICK
        return min(max(self._time.until(found.next_by), 0.0) + LENIENCE, TICK)

    def _follow(self, found: PassedDeadlines) -> None:
        if _is_over(found) and not self._recorder.is_shared:  # what is taken over may have deadlines
            self._time.nothing_waits()

    def _tell(self, found: PassedDeadlines) -> None:
        for provider, count in found.passed.items():
            self._metrics.unconfirmed(provider, count)
            log(Event.RECEIPT_UNCONFIRMED, channel=channel_of(provider), provider=provider, count=count)
        for provider, count in found.dropped.items():
            self._metrics.deadlines_dropped(count)
            log(Event.RECEIPT_NOT_AWAITED, channel=channel_of(provider), provider=provider, count=count)
        for provider in found.silent - self.silent:
            log(Event.RECEIPT_SILENT, channel=channel_of(provider), provider=provider)
        for provider in self.silent - found.silent:
            log(Event.RECEIPT_REPORTING, channel=channel_of(provider), provider=provider)
        self.silent = found.silent


def _is_over(found: PassedDeadlines) -> bool:
    """Whether no deadline waits any more."""
    return found.is_complete and found.next_by is None and not found.silent


class OverdueReceipts:
    """Counts what was sent and never confirmed. `patience` is in seconds, by provider."""

    def __init__(
        self, patience: Mapping[str, float], journal: Journal, recorder: Recorder, metrics: Metrics
    ) -> None:
        self._patience = dict(patience)
        self._journal = journal
        self._recorder = recorder
        self._metrics = metrics
        self._counted: dict[str, int] = {}

    def adopt(self, patience: Mapping[str, float]) -> None:
        """Count for other providers, or by other times, from now on."""
        self._patience = dict(patience)

    async def count(self) -> None:
        """Count the messages that became overdue since the last call."""
        for provider, seconds in list(self._patience.items()):
            until = self._recorder.passed.before(seconds)
            since = None if self._journal.is_shared else self._counted.get(provider)  # logs change hands
            count = await self._journal.count_overdue(provider, since, until)
            self._counted[provider] = until
            if count:
                self._metrics.overdue(provider, count)
                log(
                    Event.RECEIPT_OVERDUE,
                    channel=channel_of(provider), provider=provider, count=count, seconds=seconds,
                )  # fmt: skip
