"""Channels of which all providers are down, and when their messages go to the next channel."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.choice import Choice
from deliveryd.journal.base import Journal
from deliveryd.model import SECOND, STEP, Clock
from deliveryd.runtime import waits
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, Heartbeats
from deliveryd.telemetry.log_events import Event, log


class Availability:
    """Measures for how long all providers of a channel are down, and keeps in the journal since when.

    After `limits` (seconds, by channel) the channel is unavailable, until one of its providers answers; a
    channel without a limit never is. While the worker runs, the event loop's clock counts, which nobody can
    put forward; the time of day counts only over a restart. After that a probe comes first: only when it
    fails is a channel unavailable that was down before.
    """

    def __init__(  # noqa: PLR0917 - all are parts
        self,
        journal: Journal,
        backlog: Backlog,
        choices: Mapping[str, Choice],
        limits: Mapping[str, float],
        clock: Clock,
        heartbeats: Heartbeats,
    ) -> None:
        self._journal = journal
        self._backlog = backlog
        self._choices = {channel: choices[channel] for channel in limits}
        self._limits = limits
        self._clock = clock
        self._heartbeats = heartbeats
        self._down_from: dict[str, float] = {}  # the event loop's time
        self._kept: dict[str, int] = {}  # the time of day, as in the journal

    def adopt(self, choices: Mapping[str, Choice], limits: Mapping[str, float]) -> None:
        """Watch other channels from now on; those that stay keep what was noted of them."""
        for channel, before in self._choices.items():
            if channel in limits:
                choices[channel].is_unavailable = before.is_unavailable
        self._choices = {channel: choices[channel] for channel in limits}
        self._limits = limits

    def resume(self, since: Mapping[str, int]) -> None:
        """Take up what an earlier run noted: providers of these channels are probed before they are used."""
        for channel, at in since.items():
            choice = self._choices.get(channel)
            if choice is not None and choice.is_enabled:
                self._kept[channel] = at
                self._down_from[channel] = anyio.current_time() - max(self._clock.now() - at, 0) / SECOND
                for sender in choice.senders.values():
                    sender.standing.suspect()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._heartbeats.beat("availability")
            await self._look()
            await anyio.sleep(HEARTBEAT_INTERVAL / 2)

    async def _look(self) -> None:
        """Note which channels are down now, and which have been for too long."""
        now = anyio.current_time()
        self._down_from = {
            channel: self._down_from.get(channel, now)
            for channel, choice in self._choices.items()
            if choice.is_down
        }
        await self._keep(now)
        for channel, choice in self._choices.items():
            is_down = channel in self._down_from
            is_over = is_down and now - self._down_from[channel] >= self._limits[channel]
            if choice.is_unavailable and not is_down:
                self._change(channel, choice, Event.CHANNEL_AVAILABLE)
            elif not choice.is_unavailable and is_over and choice.has_failed:
                self._change(channel, choice, Event.CHANNEL_GIVEN_UP)

    async def _keep(self, now: float) -> None:
        """Keep in the journal what changed, also where the time of day was set since it was written."""
        today = self._clock.now()
        measured = {
            channel: today - int((now - down_from) * SECOND) for channel, down_from in self._down_from.items()
        }
        if measured.keys() == self._kept.keys() and all(
            abs(measured[channel] - at) < STEP for channel, at in self._kept.items()
        ):
            return
        await self._journal.note_down(measured)
        self._kept = measured

    def _change(self, channel: str, choice: Choice, event: Event) -> None:
        choice.is_unavailable = not choice.is_unavailable
        log(event, channel=channel)
        for provider in choice.senders:
            self._backlog.answered(waits.alone(provider))
