"""Providers that are down for too long, and when what waits for them goes to the next channel.

The same loop has the shares of slow providers move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import anyio

from deliveryd.delivery.choice import Choice
from deliveryd.delivery.common import Common
from deliveryd.model import SECOND, STEP, channel_of
from deliveryd.runtime import waits
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL
from deliveryd.telemetry.log_events import Event, log


class Availability:
    """Measures for how long providers are down, and keeps in the journal since when.

    After its channel's limit (seconds) a provider is given up, until it answers; providers of a channel
    without a limit never are. While the worker runs, the event loop's clock counts, which can't be put
    forward; the time of day counts only over a restart. After that a probe comes first: a provider that was
    down before is given up when that fails, or when none succeeds within the limit.
    """

    def __init__(self, common: Common, choices: Mapping[str, Choice], limits: Mapping[str, float]) -> None:
        self._journal = common.journal
        self._backlog = common.memory.backlog
        self._shares = common.memory.shares
        self._all = choices
        self._choices = {channel: choices[channel] for channel in limits}
        self._limits = limits
        self._clock = common.clock
        self._heartbeats = common.heartbeats
        self._down_from: dict[str, float] = {}  # by provider, the event loop's time
        self._kept: Mapping[str, int] = {}  # the time of day, as in the journal
        self._others: Mapping[str, int] = {}  # the same of what others noted and isn't down here
        self._resumed_at = float("inf")  # when providers were suspected
        self._reached: frozenset[str] = frozenset()  # those given up that could be connected to

    def adopt(self, choices: Mapping[str, Choice], limits: Mapping[str, float]) -> None:
        """Watch other channels from now on; those that stay keep what was noted of them."""
        for channel, before in self._choices.items():
            if channel in limits:
                choices[channel].give_up(before.given_up)
        self._all = choices
        self._choices = {channel: choices[channel] for channel in limits}
        self._limits = limits

    def resume(self, since: Mapping[str, int], set_by: int = 0) -> None:
        """Take up what an earlier run noted: these providers are probed before they are used.

        `set_by`: microseconds by which the clock was put forward since then; negative: back.
        What it noted of others, which are removed or disabled, is deleted with the first look.
        """
        self._kept = dict(since)
        for provider, at in since.items():
            choice = self._choices.get(channel_of(provider))
            sender = None if choice is None else choice.enabled.get(provider)
            if sender is not None:
                self._resumed_at = anyio.current_time()
                self._down_from[provider] = self._by_the_loop(at + set_by)
                sender.standing.suspect()

    def follow(self, since: Mapping[str, int], set_by: int = 0) -> None:
        """Take over what is noted in a journal that others share: a provider's earliest outage counts.

        Whether it is down is each worker's own matter, by its breaker.
        """
        self._kept = dict(since)
        since = {provider: at + set_by for provider, at in since.items()}
        self._others = {provider: at for provider, at in since.items() if provider not in self._down_from}
        for provider in since.keys() & self._down_from.keys():
            self._date_back(provider, since[provider])

    def forget_others(self) -> None:
        """Delete what is noted of providers that aren't down here: a worker that ended may have noted it.

        Workers to which they are down note it again.
        """
        self._others = {}

    def _by_the_loop(self, at: int) -> float:
        """An instant of the past by the event loop's clock."""
        return anyio.current_time() - max(self._clock.now() - at, 0) / SECOND

    def _date_back(self, provider: str, at: int) -> None:
        self._down_from[provider] = min(self._down_from[provider], self._by_the_loop(at))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._heartbeats.beat("availability")
            await self._look()
            if self._shares.channels:
                self._shares.look()
            await anyio.sleep(HEARTBEAT_INTERVAL / 2)

    async def _look(self) -> None:
        """Note which providers are down now, and which have been for too long."""
        now = anyio.current_time()
        down = [provider for choice in self._choices.values() for provider in choice.down]
        self._down_from = {provider: self._down_from.get(provider, now) for provider in down}
        if self._others:
            self._join_others()
        await self._keep(now)
        for channel, choice in self._choices.items():
            at = now - self._limits[channel]
            # What an earlier run noted isn't enough: a probe failed, or none succeeded for as long.
            confirmed = {each for each in choice.down if self._resumed_at <= at or choice.has_failed(each)}
            self._give_up(channel, choice, self._down_since(confirmed, at))
        reached = frozenset(provider for choice in self._choices.values() for provider in choice.reached)
        if reached - self._reached:
            self._route_queued()
        self._reached = reached

    def _down_since(self, providers: Iterable[str], at: float) -> set[str]:
        """Those of these providers that have been down since this time, or longer."""
        return {each for each in providers if self._down_from.get(each, float("inf")) <= at}

    def _join_others(self) -> None:
        """Providers that are down here as well now have been so since others noted it."""
        for provider in self._others.keys() & self._down_from.keys():
            self._date_back(provider, self._others[provider])
        self._others = {each: at for each, at in self._others.items() if each not in self._down_from}

    async def _keep(self, now: float) -> None:
        """Keep in the journal what changed, also where the time of day was set since it was written."""
        today = self._clock.now()
        measured = {
            **self._others,
            **{
                provider: today - int((now - down_from) * SECOND)
                for provider, down_from in self._down_from.items()
            },
        }
        if measured.keys() == self._kept.keys() and all(
            abs(measured[provider] - at) < STEP for provider, at in self._kept.items()
        ):
            return
        await self._journal.note_down(measured)
        self._kept = measured

    def _give_up(self, channel: str, choice: Choice, given_up: set[str]) -> None:
        """Give those providers up that are down for too long, and take back those that aren't."""
        if given_up == choice.given_up:
            return
        was_unavailable, came_back = choice.is_unavailable, choice.given_up - given_up
        choice.give_up(given_up)
        if choice.is_unavailable is not was_unavailable:
            log(Event.CHANNEL_AVAILABLE if was_unavailable else Event.CHANNEL_GIVEN_UP, channel=channel)
        for provider in choice.senders:
            self._backlog.answered(waits.alone(provider))
        self._route_queued()
        if came_back:
            self._wake_waiting()

    def _route_queued(self) -> None:
        """Have what is queued for providers that are down routed again: another one may take it now."""
        for choice in self._all.values():
            choice.changes += 1

    def _wake_waiting(self) -> None:
        """The same for what waits in the journal for providers that are down, of any channel."""
        for choice in self._all.values():
            for provider in choice.down:
                for waits_for in waits.at(provider):
                    self._backlog.answered(waits_for)
        self._backlog.answered(waits.WINDOW)  # that of a later channel
