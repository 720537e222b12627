"""The worker's metrics as plain numbers; admin/exposition.py formats them for Prometheus on each scrape.

Labels are names of configured channels and providers, and values of fixed sets, never IDs, so the number of
series is known in advance. All series start at 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from deliveryd.channels.base import (
    Accepted,
    Expired,
    InDoubt,
    Misconfigured,
    Refused,
    Stopped,
    TryAgain,
    Unsent,
    Verdict,
)
from deliveryd.model import channel_of
from deliveryd.states import ENDED, State

FailureKind = Literal["unavailable", "refused", "unreadable"]
"""The three ways in which a request to the service fails."""

SettingsAnswer = Literal["found", "unusable", "unavailable"]
BatchSize = Literal["full", "short", "empty"]
"""Whether the queue had as many messages as were asked for, fewer, or none."""

CacheLayer = Literal["memory", "disk", "old"]
CustomerAnswer = Literal["found", "unknown", "unavailable"]
ReceiptResult = Literal["accepted", "repeated", "unmatched", "not_ours", "forged", "malformed", "turned_away"]

Labels = tuple[str, ...]

_STOPS = {True: "stopped", False: "resumed"}
VERDICT_WORDS: dict[type[Verdict], str] = {
    Accepted: "accepted",
    Refused: "refused",
    Stopped: "stopped",
    TryAgain: "try_again",
    InDoubt: "in_doubt",
    Misconfigured: "misconfigured",
    Expired: "expired",
    Unsent: "unsent",
}

_ALONE = ()
"""The labels of a family without labels."""

NONE = "none"
"""The channel and the provider of what is bound to none, or to one that isn't configured any more."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
DELAYS = (
    *(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    *(_MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 6 * _HOUR, _DAY),
)
"""Bounds of the histogram of delays, in seconds."""

_ATTEMPTS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_COMMITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


@dataclass(frozen=True, slots=True)
class Levels:
    """Current values: messages per state, events not yet accepted, bytes of the journal's files (None: it has
    none), whether each provider's breaker is open, and whether receipt deadlines of a provider stand still;
    the pauses by kind, and messages that are paused; whether messages are taken, messages in doubt by
    provider, the ages of what waits longest (seconds), the in-flight slots that are held, of how many, the
    lines that the log lacks since the start, and messages with an event that the service fails at.
    """

    messages: Mapping[State, int]
    outbox: int
    journal_size: int | None
    providers_open: Mapping[str, bool]
    providers_silent: Mapping[str, bool]
    pauses: Mapping[str, int] = field(default_factory=dict)
    paused: int = 0
    ready: bool = False
    in_doubt: Mapping[str, int] = field(default_factory=dict)
    oldest_message: float = 0.0
    oldest_event: float = 0.0
    in_flight: int = 0
    in_flight_limit: int = 0
    log_dropped: int = 0
    events_failing: int = 0


class Totals(NamedTuple):
    """Messages since the start: taken, and those that reached each end."""

    taken: int = 0
    sent: int = 0
    delivered: int = 0
    failed: int = 0


class ProviderTotals(NamedTuple):
    """What is counted of one provider since the start: attempts by what became of them, and messages."""

    accepted: int
    failed: int
    delivered: int
    unconfirmed: int
    overdue: int


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

    def observe_all(self, durations: Sequence[float]) -> None:
        """Count several durations."""
        counts, bounds = self.counts, self.bounds
        for seconds in durations:
            counts[bisect_left(bounds, seconds)] += 1
        self.total += sum(durations)


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
        self._takes = by(
            "queue_takes",
            "Answers of the queue: as many messages as were asked for, fewer, or none.",
            batch=get_args(BatchSize),
        )
        self._take_failures = by(
            "queue_take_failures",
            "Requests to the queue without a usable answer.",
            reason=get_args(FailureKind),
        )
        self._ended = self._tally(
            "messages_ended",
            "Messages that reached an end state.",
            ("channel", "provider", "state"),
            (),
        )
        self._delay: dict[str, Durations] = {}
        self._delay_series = self._timed_at("delivery_delay", "From take to acceptance by a channel.")

        self._posts = plain("event_posts", "Posts of status events, whatever the service answered.")
        self._events_posted = plain("events_posted", "Status events in these posts.")
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
        self._receipts = self._tally(
            "receipts",
            "Receipts from providers.",
            ("channel", "provider", "result"),
            (),
        )
        self._spans = by("otlp_spans", "Spans for the OTLP collector.", result=("accepted", "lost"))
        self._export_failures = plain("otlp_export_failures", "Failed posts to the OTLP collector.")
        self._commits = self._timed("journal_commit", "Time for one durable commit.", _COMMITS)
        self._attempts = self._tally(
            "attempts", "Attempts by verdict.", ("channel", "provider", "verdict"), ()
        )
        self._unconfirmed, self._overdue = (
            self._tally(name, meaning, ("channel", "provider"), ())
            for name, meaning in (
                ("receipts_unconfirmed", "Messages that weren't confirmed by their receipt deadline."),
                ("receipts_overdue", "Messages that weren't confirmed for receipt_overdue."),
            )
        )
        self._without_id = self._tally(
            "accepted_without_id",
            "Messages accepted without the ID that provider_id names.",
            ("channel", "provider"),
            (),
        )
        self._dropped = self._counted(
            "receipt_deadlines_dropped",
            "Receipt deadlines dropped because their provider was removed from the configuration.",
        )
        self._channels: dict[str, str] = {}
        self._stops = self._tally(
            "recipients_stopped",
            "Recipients who stopped a channel, and those who may be sent to again.",
            ("channel", "change"),
            [],
        )
        self._attempt_seconds: dict[str, Durations] = {}
        self._attempt_series = self._timed_at("attempt_duration", "Time for one attempt.")
        self._add_place(NONE, NONE)
        for provider in providers:
            self.add_provider(provider)

    def add_provider(self, provider: str) -> None:
        """Begin the series of a provider; those of a removed one stay, and go on if it is added again."""
        if provider in self._channels:
            return
        channel = self._channels[provider] = channel_of(provider)
        for word in _STOPS.values():
            self._stops.setdefault((channel, word), 0)
        for word in VERDICT_WORDS.values():
            self._attempts[channel, provider, word] = 0
        self._add_place(channel, provider)
        self._without_id[channel, provider] = 0
        self._unconfirmed[channel, provider] = self._overdue[channel, provider] = 0
        durations = self._attempt_seconds[provider] = Durations(_ATTEMPTS)
        self._attempt_series[channel, provider] = durations
        delays = self._delay[provider] = Durations(DELAYS)
        self._delay_series[channel, provider] = delays

    def _add_place(self, channel: str, provider: str) -> None:
        """Begin the series that are also counted where no provider is known."""
        for end in sorted(ENDED):
            self._ended[channel, provider, _word(end)] = 0
        for result in get_args(ReceiptResult):
            self._receipts[channel, provider, result] = 0

    def taken(self, fresh: int, repeated: int, malformed: int) -> None:
        """Count a batch recorded in the journal."""
        self._taken[_ALONE] += fresh
        self._repeated[_ALONE] += repeated
        self._malformed[_ALONE] += malformed

    def answered(self, asked: int, size: int) -> None:
        """Count an answer of the queue that came whole."""
        self._takes["full" if size >= asked else "short" if size else "empty",] += 1

    def take_failed(self, reason: FailureKind) -> None:
        """Count a request to the queue without a usable answer."""
        self._take_failures[reason,] += 1

    def batch_lost(self) -> None:
        """Count a batch that was not received completely."""
        self._lost[_ALONE] += 1

    def ended(self, state: State, provider: str | None, count: int = 1) -> None:
        """Count messages that reached an end state, at a provider or at none."""
        channel, provider = self._place_of(provider)
        self._ended[channel, provider, _word(state)] += count

    def attempted(self, provider: str, verdict: Verdict, seconds: float) -> None:
        """Count an attempt with its verdict and its duration."""
        self._attempts[self._channels[provider], provider, VERDICT_WORDS[type(verdict)]] += 1
        self._attempt_seconds[provider].observe(seconds)

    def accepted_without_id(self, provider: str) -> None:
        """Count a message that a provider accepted without the ID that is configured."""
        self._without_id[self._channels[provider], provider] += 1

    def stop_changed(self, channel: str, stopped: bool) -> None:
        """Count a recipient who stopped a channel, or who may be sent to again."""
        if (channel, _STOPS[stopped]) in self._stops:  # the channel may have been removed
            self._stops[channel, _STOPS[stopped]] += 1

    def accepted_after(self, provider: str, delays: Sequence[float]) -> None:
        """Record the seconds from messages' takes to their acceptance by a provider."""
        self._delay[provider].observe_all(delays)

    def events_posted(self, count: int) -> None:
        """Count a post of so many status events."""
        self._posts[_ALONE] += 1
        self._events_posted[_ALONE] += count

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

    def receipt(self, result: ReceiptResult, provider: str | None, times: int = 1) -> None:
        """Count receipts from a provider, or requests that name none."""
        channel, provider = self._place_of(provider)
        self._receipts[channel, provider, result] += times

    def unconfirmed(self, provider: str, count: int) -> None:
        """Count messages whose receipt deadline passed."""
        self._unconfirmed[channel_of(provider), provider] += count

    def deadlines_dropped(self, count: int) -> None:
        """Count messages whose receipt deadline was dropped."""
        self._dropped[_ALONE] += count

    def overdue(self, provider: str, count: int) -> None:
        """Count messages that were sent long ago and never confirmed."""
        self._overdue[channel_of(provider), provider] += count

    def spans_exported(self, accepted: int, lost: int) -> None:
        """Count spans that the OTLP collector accepted, and spans that it will never have."""
        self._spans["accepted",] += accepted
        self._spans["lost",] += lost

    def export_failed(self) -> None:
        """Count a failed post to the OTLP collector."""
        self._export_failures[_ALONE] += 1

    def committed(self, seconds: float) -> None:
        """Record the duration of a durable commit."""
        self._commits.observe(seconds)

    def totals(self) -> Totals:
        """Return how many messages were taken and ended since the start."""
        ends = Counter[str]()
        for (_channel, _provider, word), count in self._ended.items():
            ends[word] += count
        sent, delivered, failed = (ends[_word(end)] for end in (State.SENT, State.DELIVERED, State.FAILED))
        return Totals(self._taken[_ALONE], sent, delivered, failed)

    def provider_totals(self, provider: str) -> ProviderTotals:
        """Return what is counted of one provider since the start."""
        place = (self._channels[provider], provider)
        accepted, *failed = (self._attempts[*place, word] for word in VERDICT_WORDS.values())
        return ProviderTotals(
            accepted,
            sum(failed),
            self._ended[*place, _word(State.DELIVERED)],
            self._unconfirmed[place],
            self._overdue[place],
        )

    def attempts(self) -> dict[str, int]:
        """Return how many attempts were made since the start, by provider."""
        return {provider: sum(each.counts) for provider, each in self._attempt_seconds.items()}

    def delays(self) -> tuple[int, ...]:
        """Return the messages accepted since the start by their delay, up to each of `DELAYS` and beyond."""
        return tuple(map(sum, zip(*(each.counts for each in self._delay.values()), strict=True)))

    def _place_of(self, provider: str | None) -> tuple[str, str]:
        """Return the labels of a provider."""
        if provider is None or (channel := self._channels.get(provider)) is None:
            return NONE, NONE
        return channel, provider

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

    def _timed_at(self, name: str, meaning: str) -> dict[Labels, Durations]:
        """Add a family of histograms of durations, to have one for each provider."""
        series: dict[Labels, Durations] = {}
        self.families.append(Lengths(f"deliveryd_{name}_seconds", meaning, ("channel", "provider"), series))
        return series


def _word(state: State) -> str:
    return state.name.lower()
