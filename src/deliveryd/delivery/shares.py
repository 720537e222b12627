"""The shares of a channel's providers, by how long their deliveries take (`slow_after`).

Where a tenth of a provider's deliveries of the last minutes took longer, and those of another provider of the
channel didn't, a tenth of its own share moves to the others every five minutes. It comes back as slowly once
the provider isn't slow any more. All of it goes by the event loop's clock, is in memory only, and begins anew
with a start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import anyio

from deliveryd.delivery.choice import Choice
from deliveryd.model import channel_of, format_duration
from deliveryd.telemetry.log_events import Event, log

SPAN = 300.0
"""Seconds of which deliveries are judged, and between two moves of a provider's share."""

WHOLE = 10
"""The parts of a share; one moves at a time."""

FLOOR = 1
"""The parts that a provider keeps, so that its deliveries show when it is well again."""

FEWEST_DELIVERIES = 20
"""Deliveries of the span by which a provider is judged; with fewer it isn't, and counts as not slow."""

_BUCKETS = 10


class _Reports:
    """The deliveries that one provider reported within the span, and its share."""

    def __init__(self, parts: int = WHOLE) -> None:
        self.parts = parts
        self.count = self.slow = 0
        self._buckets: deque[tuple[float, list[int]]] = deque()
        self._moved_at = float("-inf")

    def add(self, is_slow: bool) -> None:
        """Count a delivery."""
        now = anyio.current_time()
        if not self._buckets or now >= self._buckets[-1][0] + SPAN / _BUCKETS:
            self._buckets.append((now, [0, 0]))
        counts = self._buckets[-1][1]
        counts[0] += 1
        counts[1] += is_slow
        self.count += 1
        self.slow += is_slow

    def forget_old(self, now: float) -> None:
        """Leave out what is older than the span."""
        while self._buckets and self._buckets[0][0] <= now - SPAN:
            _, (count, slow) = self._buckets.popleft()
            self.count -= count
            self.slow -= slow

    @property
    def is_judged(self) -> bool:
        """Whether there are enough deliveries."""
        return self.count >= FEWEST_DELIVERIES

    @property
    def is_slow(self) -> bool:
        """Whether a tenth of them took too long."""
        return self.is_judged and self.slow * WHOLE >= self.count

    def move(self, parts: int, now: float) -> bool:
        """Move parts of the share, unless that was done within the span; return whether they moved."""
        parts = min(max(self.parts + parts, FLOOR), WHOLE)
        if parts == self.parts or now < self._moved_at + SPAN:
            return False
        self.parts, self._moved_at = parts, now
        return True


class _Channel:
    """The providers of a channel that share its messages."""

    def __init__(self, choice: Choice, slow_after: float, before: _Channel | None) -> None:
        self.slow_after = slow_after
        self._choice = choice
        known: dict[str, _Reports] = {} if before is None else before.reports
        if before is not None and before.slow_after != slow_after:  # they were judged by the other time
            known = {name: _Reports(each.parts) for name, each in known.items()}
        self.reports: dict[str, _Reports] = {
            name: known.get(name) or _Reports() for name, sender in choice.enabled.items() if sender.weight
        }
        self._weigh()

    def look(self, now: float) -> None:
        """Judge each provider, and move what is to move of the shares."""
        for each in self.reports.values():
            each.forget_old(now)
        is_another_well = any(each.is_judged and not each.is_slow for each in self.reports.values())
        has_moved = False
        for name, each in self.reports.items():
            if each.is_slow and not is_another_well:
                continue  # all are: it isn't the provider
            if each.move(-1 if each.is_slow else 1, now):
                has_moved = True
                self._log(name, each)
        if has_moved:
            self._weigh()

    def _log(self, name: str, each: _Reports) -> None:
        longer = f"took longer than {format_duration(self.slow_after)}"
        reason = f"{each.slow} of {each.count} deliveries {longer}"
        event = Event.CHANNEL_SLOW if each.is_slow else Event.CHANNEL_LESS_SLOW
        log(event, channel=channel_of(name), provider=name, share=each.parts / WHOLE, reason=reason)

    def _weigh(self) -> None:
        """Have the channel choose by the shares: what slow providers lose goes to the others by weight."""
        weights = {name: float(self._choice.enabled[name].weight) for name in self.reports}
        kept = {name: weights[name] * each.parts / WHOLE for name, each in self.reports.items()}
        others = sum(weights[name] for name, each in self.reports.items() if each.parts == WHOLE)
        lost = sum(weights.values()) - sum(kept.values())
        gain = 1.0 + lost / others if others else 1.0
        self._choice.weigh(
            {name: kept[name] * (gain if each.parts == WHOLE else 1.0) for name, each in self.reports.items()}
        )


class Shares:
    """The shares of all channels that have a `slow_after`; without one nothing is judged."""

    def __init__(self) -> None:
        self.channels: Mapping[str, _Channel] = {}
        """Those that are judged."""

    def follow(self, choices: Mapping[str, Choice], slow_after: Mapping[str, float]) -> None:
        """Judge by these limits (seconds) from now on; shares of providers that stay are kept."""
        self.channels = {
            name: _Channel(choices[name], seconds, self.channels.get(name))
            for name, seconds in slow_after.items()
        }

    def note(self, provider: str, seconds: float) -> None:
        """A provider reported a delivery that took so long."""
        channel = self.channels.get(channel_of(provider))
        if channel is not None and (reports := channel.reports.get(provider)) is not None:
            reports.add(seconds > channel.slow_after)

    def look(self) -> None:
        """Move what is to move."""
        now = anyio.current_time()
        for channel in self.channels.values():
            channel.look(now)

    def of(self, provider: str) -> float | None:
        """What a provider has of its own share, 1 at most; None: it isn't judged."""
        channel = self.channels.get(channel_of(provider))
        reports = None if channel is None else channel.reports.get(provider)
        return None if reports is None else reports.parts / WHOLE

    @property
    def all(self) -> Mapping[str, float]:
        """The same of each provider that is judged."""
        return {
            name: each.parts / WHOLE
            for channel in self.channels.values()
            for name, each in channel.reports.items()
        }
