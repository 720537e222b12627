"""Sharing: the line follows what other workers of its journal do, and goes on with what ended ones left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import anyio

from deliveryd.delivery.doubt import DoubtPolicy
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.recovery import adopt_line
from deliveryd.journal.base import FromOthers
from deliveryd.model import Clock
from deliveryd.runtime.wakeup import AutoResetEvent, Heartbeats

FOLLOW_INTERVAL = 1.0
"""Seconds between two looks at what other workers did."""

ROOM_INTERVAL = 5.0
"""Seconds after which this worker takes what waits for room: the one that put it off may be busy still."""

REVIEW_INTERVAL = 60.0
"""Seconds after which this worker takes over what waits for a provider's recovery.

Nobody records which worker was to wake it: that one may have ended unseen, or have the provider no more.
"""

RESTART = 600.0
"""Seconds after the end of a worker for which the outages stay noted that it saw: it may be restarted."""


class Sends(Protocol):
    """What sends at one provider."""

    @property
    def provider(self) -> Provider:
        """The provider."""


class Outages(Protocol):
    """What keeps since when providers are down."""

    def follow(self, since: Mapping[str, int]) -> None:
        """Take over what others noted."""

    def forget_others(self, but: Collection[str] = ()) -> None:
        """Delete what is noted of providers that aren't down here, but for some."""


class Sharing:
    """The loop that follows other workers. On a journal of one worker there is nothing to run."""

    def __init__(  # noqa: PLR0917 - all are parts
        self,
        recorder: Recorder,
        lanes: Mapping[str, Sends],
        doubts: Mapping[str, DoubtPolicy],
        outages: Outages,
        clock: Clock,
        heartbeats: Heartbeats,
    ) -> None:
        self._recorder = recorder
        self._lanes = lanes
        self._doubts = doubts
        self._outages = outages
        self._clock = clock
        self._heartbeats = heartbeats
        self._review_at = 0.0  # the event loop's time
        self._room_at = 0.0  # the same
        self._forget_at = float("inf")  # the event loop's time
        self._stopping = False
        self._stop_event = AutoResetEvent()

    def loops(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """What has to run: nothing if no other worker can use the journal."""
        return (self.run,) if self._recorder.is_shared else ()

    def stop(self) -> None:
        """Adopt nothing more: the worker is about to end."""
        self._stopping = True
        self._stop_event.set()

    async def run(self) -> None:
        """Follow until stopped."""
        while not self._stopping:
            self._heartbeats.beat("sharing")
            is_paused_anew = await self._follow()
            # The next look tells that this worker goes by the pauses, which an operator waits for.
            await self._stop_event.wait(0 if is_paused_anew else FOLLOW_INTERVAL)
        self._heartbeats.forget("sharing")

    async def _follow(self) -> bool:
        """Look once; return whether the pauses changed."""
        providers = {name: self._doubts[name] for name in self._lanes}
        found = await self._recorder.follow(providers)
        self._follow_outages(found)
        now = anyio.current_time()
        if found.any_ended or found.adopted is not None or now >= self._review_at:
            self._review_at = now + REVIEW_INTERVAL
            self._room_at = now
            self._review()
        if now >= self._room_at:
            self._room_at = now + ROOM_INTERVAL
            self._recorder.backlog.note_short_of_room(providers)
        if found.adopted is not None:
            await adopt_line(self._recorder, found.adopted, providers, self._clock)
        return found.pauses is not None

    def _review(self) -> None:
        for lane in self._lanes.values():
            lane.provider.expect_waiting()
        self._forget_outages()

    def _follow_outages(self, found: FromOthers) -> None:
        if found.down_since is not None:
            self._outages.follow(found.down_since)
        if found.any_ended or found.adopted is not None:
            self._forget_at = anyio.current_time() + RESTART

    def _forget_outages(self) -> None:
        """Forget what ended workers noted, once none of them may be restarted that saw it.

        That is at once where nobody else has the provider, or had it a short while ago.
        """
        if anyio.current_time() >= self._forget_at:
            self._forget_at = float("inf")
            self._outages.forget_others()
        else:
            self._outages.forget_others(self._recorder.pausing.elsewhere)
