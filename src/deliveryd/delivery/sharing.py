"""Sharing: the line follows what other workers of its journal do, and goes on with what ended ones left."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import anyio

from deliveryd.delivery.admission import Sends
from deliveryd.delivery.common import Common
from deliveryd.delivery.policy import DoubtPolicy
from deliveryd.delivery.recovery import adopt_line, look_at_paused
from deliveryd.journal.base import FromOthers
from deliveryd.runtime.wakeup import AutoResetEvent

FOLLOW_INTERVAL = 1.0
"""Seconds between two looks at what other workers did."""

RESTART = 600.0
"""Seconds after the end of a worker for which the outages stay noted that it saw: it may be restarted."""


class Outages(Protocol):
    """What keeps since when providers are down."""

    def follow(self, since: Mapping[str, int]) -> None:
        """Take over what others noted."""

    def forget_others(self) -> None:
        """Delete what is noted of providers that aren't down here."""


class Sharing:
    """The loop that follows other workers. On a journal of one worker there is nothing to run."""

    def __init__(
        self,
        common: Common,
        dispatchers: Mapping[str, Sends],
        doubts: Mapping[str, DoubtPolicy],
        outages: Outages,
    ) -> None:
        self._common = common
        self._dispatchers = dispatchers
        self._doubts = doubts
        self._outages = outages
        self._heartbeats = common.heartbeats
        self._forget_at = float("inf")  # the event loop's time
        self._stopping = False
        self._stop_event = AutoResetEvent()
        self._ended = anyio.Event()

    def loops(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """What has to run: nothing if no other worker can use the journal."""
        return (self.run,) if self._common.journal.is_shared else ()

    def stop(self) -> None:
        """Adopt nothing more: the worker is about to end."""
        self._stopping = True
        self._stop_event.set()

    async def run(self) -> None:
        """Follow until stopped."""
        while not self._stopping:
            self._heartbeats.beat("sharing")
            looks_again = await self._follow()
            await self._stop_event.wait(0 if looks_again else FOLLOW_INTERVAL)
        self._heartbeats.forget("sharing")
        self._ended.set()

    async def finish(self) -> None:
        """Wait until what was adopted last is recorded, with its events."""
        if self._common.journal.is_shared:
            await self._ended.wait()

    async def _follow(self) -> bool:
        """Look once; return whether to look again at once.

        The next look reports that this worker goes by new pauses, which an operator waits for.
        """
        providers = {name: self._doubts[name] for name in self._dispatchers}
        found = await self._common.recorder.follow(providers)
        await self._follow_budgets()
        self._follow_outages(found)
        now = anyio.current_time()
        if now >= self._forget_at:
            self._forget_at = float("inf")
            self._outages.forget_others()
        if found.adopted is not None:
            for dispatcher in self._dispatchers.values():
                dispatcher.admission.provider.expect_waiting()
            await adopt_line(self._common, found.adopted, providers)
            await look_at_paused(self._common, self._dispatchers)
        return found.pauses is not None or found.has_more

    async def _follow_budgets(self) -> None:
        """Take over what other workers used of budgets, where there are any."""
        limits = self._common.memory.limits
        if limits.budgets.all:
            limits.refresh(await self._common.journal.budget_uses(self._common.clock.now()))

    def _follow_outages(self, found: FromOthers) -> None:
        if found.down_since is not None:
            self._outages.follow(found.down_since)
        if found.any_ended or found.adopted is not None:
            self._forget_at = anyio.current_time() + RESTART
