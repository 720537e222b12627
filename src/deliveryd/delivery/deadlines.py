"""Receipt deadlines: what was sent and isn't confirmed in time goes on to the next channel.

Deadlines are measured in listening time (see `listening`), which the journal keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from deliveryd.delivery.common import Common
from deliveryd.delivery.listening import TICK
from deliveryd.journal.base import PassedDeadlines
from deliveryd.model import channel_of
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL
from deliveryd.telemetry.log_events import Event, log

LENIENCE = 0.5
"""Seconds that are waited after a deadline, so that those that are close together pass together."""

PORTION = 500
PORTION_PAUSE = 0.1
"""Messages of a provider that go on together at most, and the seconds until the next portion."""


class ReceiptDeadlines:
    """The loop that watches the deadlines of `providers`."""

    def __init__(self, providers: Collection[str], common: Common) -> None:
        self._providers = providers
        self._time = common.listening
        self._recorder = common.recorder
        self._is_shared = common.journal.is_shared
        self._metrics = common.metrics
        self._heartbeats = common.heartbeats
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
        if _is_over(found) and not self._is_shared:  # what is taken over may have deadlines
            self._time.nothing_waits()

    def _tell(self, found: PassedDeadlines) -> None:
        for provider, count in found.passed.items():
            self._metrics.unconfirmed.add_at(provider, count=count)
            log(Event.RECEIPT_UNCONFIRMED, channel=channel_of(provider), provider=provider, count=count)
        for provider, count in found.dropped.items():
            self._metrics.deadlines_dropped.add(count=count)
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

    def __init__(self, patience: Mapping[str, float], common: Common) -> None:
        self._patience = dict(patience)
        self._journal = common.journal
        self._passed = common.memory.passed
        self._metrics = common.metrics
        self._counted: dict[str, int] = {}

    def adopt(self, patience: Mapping[str, float]) -> None:
        """Count for other providers, or by other times, from now on."""
        self._patience = dict(patience)

    async def count(self) -> None:
        """Count the messages that became overdue since the last call."""
        for provider, seconds in list(self._patience.items()):
            until = self._passed.before(seconds)
            since = None if self._journal.is_shared else self._counted.get(provider)  # logs change hands
            count = await self._journal.count_overdue(provider, since, until)
            self._counted[provider] = until
            if count:
                self._metrics.overdue.add_at(provider, count=count)
                log(
                    Event.RECEIPT_OVERDUE,
                    channel=channel_of(provider), provider=provider, count=count, seconds=seconds,
                )  # fmt: skip
