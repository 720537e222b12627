"""Channels of which all providers are down, and when their messages go to the next channel."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.choice import Choice
from deliveryd.journal.base import Journal
from deliveryd.model import SECOND, Clock
from deliveryd.runtime import waits
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, Heartbeats
from deliveryd.telemetry import Event, log


class Availability:
    """Keeps in the journal since when all providers of a channel are down.

    After `limits` (seconds, by channel) the channel is unavailable, until one of its providers answers; a
    channel without a limit never is. After a restart a probe comes first: only when it fails is a channel
    unavailable that was down before.
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
        self._since: dict[str, int] = {}

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
                self._since[channel] = at
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
        now = self._clock.now()
        since = {
            channel: min(self._since.get(channel, now), now)
            for channel, choice in self._choices.items()
            if choice.is_down
        }
        if since != self._since:
            await self._journal.note_down(since)
            self._since = since
        for channel, choice in self._choices.items():
            is_over = channel in since and now - since[channel] >= self._limits[channel] * SECOND
            if choice.is_unavailable and channel not in since:
                self._change(channel, choice, Event.CHANNEL_AVAILABLE)
            elif not choice.is_unavailable and is_over and choice.has_failed:
                self._change(channel, choice, Event.CHANNEL_GIVEN_UP)

    def _change(self, channel: str, choice: Choice, event: Event) -> None:
        choice.is_unavailable = not choice.is_unavailable
        log(event, channel=channel)
        for provider in choice.senders:
            self._backlog.answered(waits.alone(provider))
