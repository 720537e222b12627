"""The worker's metrics as plain numbers; admin/exposition.py formats them for Prometheus on each scrape.

Labels are names of configured channels and providers, and values of fixed sets, never IDs, so the number of
series is known in advance. All series start at 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from deliveryd.channels.base import (
    Accepted,
    Expired,
    InDoubt,
    Misconfigured,
    Refused,
    Stopped,
    TryAgain,
    Verdict,
)
from deliveryd.model import channel_of
from deliveryd.states import ENDED, State

FailureKind = Literal["unavailable", "refused", "unreadable"]
"""The three ways in which a request to the service fails."""

SettingsAnswer = Literal["found", "unusable", "unavailable"]
CacheLayer = Literal["memory", "disk"]
CustomerAnswer = Literal["found", "unknown", "unavailable"]
ReceiptResult = Literal["accepted", "repeated", "unmatched", "forged", "malformed", "turned_away"]

Labels = tuple[str, ...]

_VERDICTS: dict[type[Verdict], str] = {
    Accepted: "accepted",
    Refused: "refused",
    Stopped: "stopped",
    TryAgain: "try_again",
    InDoubt: "in_doubt",
    Misconfigured: "misconfigured",
    Expired: "expired",
}

_ALONE = ()
"""The labels of a family without labels."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_DELAYS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 6 * _HOUR, _DAY)
_ATTEMPTS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_COMMITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


@dataclass(frozen=True, slots=True)
class Levels:
    """Current values: messages per state, events not yet accepted, bytes of the journal's files, whether
    each provider's breaker is open, whether receipt deadlines of a provider stand still, the number of pauses
    by kind, and of messages that are paused.
    """

    messages: Mapping[State, int]
    outbox: int
    journal_size: int
    providers_open: Mapping[str, bool]
    providers_silent: Mapping[str, bool]
    pauses: Mapping[str, int] = field(default_factory=dict)
    paused: int = 0


class Durations:
    """A histogram of durations in seconds; each bound is inclusive."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass(frozen=True, slots=True)
class MetricCounts:
    """A family of counters: name, meaning, label names, and the series by label values."""

    name: str
    meaning: str
    labels: Labels
    series: Mapping[Labels, int]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A family of histograms."""

    name: str
    meaning: str
    labels: Labels
    series: Mapping[Labels, Durations]


class Metrics:
    """All metrics. Each method is cheap enough to be called once per message."""

    def __init__(self, providers: Iterable[str], version: str) -> None:
        self.version = version
        self.families: list[MetricCounts | Lengths] = []
        self.levels: Callable[[], Levels] | None = None
        plain, by = self._counted, self._counted_by

        self._taken = plain("messages_taken", "Messages taken from the queue for the first time.")
        self._repeated = plain("messages_repeated", "Messages that the queue delivered again.")
        self._malformed = plain("messages_malformed", "Malformed elements of the queue.")
        self._lost = plain("queue_batches_lost", "Batches that may be lost, partly or entirely.")
        self._take_failures = by(
            "queue_take_failures",
            "Requests to the queue without a usable answer.",
            reason=get_args(FailureKind),
        )
        self._ended = by(
            "messages_ended", "Messages that reached an end state.", state=map(_word, sorted(ENDED))
        )
        self._delay = self._timed("delivery_delay", "From take to acceptance by a channel.", _DELAYS)

        self._events_accepted = plain("events_accepted", "Status events accepted by the service.")
        self._events_refused = plain("events_refused", "Status events refused for good and set aside.")
        self._post_failures = by(
            "events_post_failures", "Failed posts of status events.", reason=get_args(FailureKind)
        )

        self._settings = by("settings_requests", "Requests for settings.", result=get_args(SettingsAnswer))
        self._settings_hits = by(
            "settings_cache_hits", "Settings found in a cache.", cache=get_args(CacheLayer)
        )
        self._customers = by("customer_lookups", "Lookups in the directory.", result=get_args(CustomerAnswer))
        self._receipts = by("receipts", "Receipts from providers.", result=get_args(ReceiptResult))
        self._commits = self._timed("journal_commit", "Time for one durable commit.", _COMMITS)
        providers = tuple(providers)
        self._attempts = self._tally(
            "attempts",
            "Attempts by verdict.",
            ("channel", "provider", "verdict"),
            [(channel_of(each), each, word) for each in providers for word in _VERDICTS.values()],
        )
        self._unconfirmed, self._overdue = (
            self._tally(
                name, meaning, ("channel", "provider"), [(channel_of(each), each) for each in providers]
            )
            for name, meaning in (
                ("receipts_unconfirmed", "Messages that weren't confirmed by their receipt deadline."),
                ("receipts_overdue", "Messages that weren't confirmed for receipt_overdue."),
            )
        )
        self._channels = {each: channel_of(each) for each in providers}
        self._attempt_seconds = self._timed_at(
            "attempt_duration", "Time for one attempt.", _ATTEMPTS, providers
        )

    def taken(self, fresh: int, repeated: int, malformed: int) -> None:
        """Count a batch recorded in the journal."""
        self._taken[_ALONE] += fresh
        self._repeated[_ALONE] += repeated
        self._malformed[_ALONE] += malformed

    def take_failed(self, reason: FailureKind) -> None:
        """Count a request to the queue without a usable answer."""
        self._take_failures[reason,] += 1

    def batch_lost(self) -> None:
        """Count a batch that was not received completely."""
        self._lost[_ALONE] += 1

    def ended(self, state: State, count: int = 1) -> None:
        """Count messages that reached an end state."""
        self._ended[_word(state),] += count

    def attempted(self, provider: str, verdict: Verdict, seconds: float) -> None:
        """Count an attempt with its verdict and its duration."""
        self._attempts[self._channels[provider], provider, _VERDICTS[type(verdict)]] += 1
        self._attempt_seconds[provider].observe(seconds)

    def accepted_after(self, seconds: float) -> None:
        """Record the time from a message's take to its acceptance by a channel."""
        self._delay.observe(seconds)

    def events_accepted(self, count: int) -> None:
        """Count status events accepted by the service."""
        self._events_accepted[_ALONE] += count

    def events_refused(self, count: int) -> None:
        """Count status events refused for good by the service."""
        self._events_refused[_ALONE] += count

    def post_failed(self, reason: FailureKind) -> None:
        """Count a failed post of status events."""
        self._post_failures[reason,] += 1

    def settings_requested(self, result: SettingsAnswer) -> None:
        """Count a request for settings."""
        self._settings[result,] += 1

    def settings_cached(self, cache: CacheLayer) -> None:
        """Count settings found in a cache."""
        self._settings_hits[cache,] += 1

    def customers_looked_up(self, found: int, asked: int) -> None:
        """Count customers looked up in the directory, and those found."""
        self._customers["found",] += found
        self._customers["unknown",] += asked - found

    def customers_unavailable(self, asked: int) -> None:
        """Count customers for whom the directory gave no answer."""
        self._customers["unavailable",] += asked

    def receipt(self, result: ReceiptResult) -> None:
        """Count a receipt from a provider."""
        self._receipts[result,] += 1

    def unconfirmed(self, provider: str, count: int) -> None:
        """Count messages whose receipt deadline passed."""
        self._unconfirmed[channel_of(provider), provider] += count

    def overdue(self, provider: str, count: int) -> None:
        """Count messages that were sent long ago and never confirmed."""
        self._overdue[channel_of(provider), provider] += count

    def committed(self, seconds: float) -> None:
        """Record the duration of a durable commit."""
        self._commits.observe(seconds)

    def follow(self, levels: Callable[[], Levels]) -> None:
        """Export these levels as gauges. `levels` is called on each scrape and must not block."""
        self.levels = levels

    def _counted(self, name: str, meaning: str) -> Counter[Labels]:
        """Add a counter without labels."""
        return self._tally(name, meaning, (), [_ALONE])

    def _counted_by(self, name: str, meaning: str, **label: Iterable[str]) -> Counter[Labels]:
        """Add a counter with one label and all of its values."""
        [(label_name, words)] = label.items()
        return self._tally(name, meaning, (label_name,), [(word,) for word in words])

    def _tally(self, name: str, meaning: str, labels: Labels, series: Iterable[Labels]) -> Counter[Labels]:
        counts = Counter(dict.fromkeys(series, 0))
        self.families.append(MetricCounts(f"deliveryd_{name}", meaning, labels, counts))
        return counts

    def _timed(self, name: str, meaning: str, bounds: Sequence[float]) -> Durations:
        """Add a histogram of durations."""
        durations = Durations(bounds)
        self.families.append(Lengths(f"deliveryd_{name}_seconds", meaning, (), {_ALONE: durations}))
        return durations

    def _timed_at(
        self, name: str, meaning: str, bounds: Sequence[float], providers: Iterable[str]
    ) -> Mapping[str, Durations]:
        """Add histograms of durations, one for each provider."""
        durations = {provider: Durations(bounds) for provider in providers}
        series: dict[Labels, Durations] = {
            (channel_of(provider), provider): each for provider, each in durations.items()
        }
        self.families.append(Lengths(f"deliveryd_{name}_seconds", meaning, ("channel", "provider"), series))
        return durations


def _word(state: State) -> str:
    return state.name.lower()
