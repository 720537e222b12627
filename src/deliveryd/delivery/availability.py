"""Channels of which all providers are down, and when their messages go to the next channel."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
        self._kept: Mapping[str, int] = {}  # the time of day, as in the journal
        self._others: Mapping[str, int] = {}  # the same of what others noted and isn't down here

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
                self._kept = {**self._kept, channel: at}
                self._down_from[channel] = self._by_the_loop(at)
                for sender in choice.senders.values():
                    sender.standing.suspect()

    def follow(self, since: Mapping[str, int]) -> None:
        """Take over what is noted in a journal that others share: the earliest outage of a channel counts.

        Whether a channel is down is each worker's own matter: its breakers say so.
        """
        self._kept = dict(since)
        self._others = {channel: at for channel, at in since.items() if channel not in self._down_from}
        for channel in since.keys() & self._down_from.keys():
            self._down_from[channel] = min(self._down_from[channel], self._by_the_loop(since[channel]))

    def forget_others(self, but: Collection[str] = ()) -> None:
        """Delete what is noted of channels that aren't down here: a worker that ended may have noted it.

        Workers to which they are down note it again. `but`: channels of which the note stays.
        """
        self._others = {channel: at for channel, at in self._others.items() if channel in but}

    def _by_the_loop(self, at: int) -> float:
        """An instant of the past by the event loop's clock."""
        return anyio.current_time() - max(self._clock.now() - at, 0) / SECOND

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
        if self._others:
            self._join_others()
        await self._keep(now)
        for channel, choice in self._choices.items():
            is_down = channel in self._down_from
            is_over = is_down and now - self._down_from[channel] >= self._limits[channel]
            if choice.is_unavailable and not is_down:
                self._change(channel, choice, Event.CHANNEL_AVAILABLE)
            elif not choice.is_unavailable and is_over and choice.has_failed:
                self._change(channel, choice, Event.CHANNEL_GIVEN_UP)

    def _join_others(self) -> None:
        """Channels that are down here as well now have been so since others noted it."""
        for channel in self._others.keys() & self._down_from.keys():
            self._down_from[channel] = min(self._down_from[channel], self._by_the_loop(self._others[channel]))
        self._others = {channel: at for channel, at in self._others.items() if channel not in self._down_from}

    async def _keep(self, now: float) -> None:
        """Keep in the journal what changed, also where the time of day was set since it was written."""
        today = self._clock.now()
        measured = {
            **self._others,
            **{
                channel: today - int((now - down_from) * SECOND)
                for channel, down_from in self._down_from.items()
            },
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
