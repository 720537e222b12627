"""The worker's metrics as plain numbers; admin/exposition.py formats them for Prometheus on each scrape.

Labels are names of configured channels and providers, and values of fixed sets, never IDs, so the number of
series is known in advance. All series start at 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

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
SpanFate = Literal["accepted", "lost"]
CustomerAnswer = Literal["found", "unknown", "unavailable"]
ReceiptResult = Literal["accepted", "repeated", "unmatched", "not_ours", "forged", "malformed", "turned_away"]

Labels = tuple[str, ...]
LabelWord = TypeVar("LabelWord", bound=str)

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

NONE = "none"
"""The channel and the provider of what is bound to none, or to one that isn't configured any more."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
DELAYS = (
    *(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    *(_MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 6 * _HOUR, _DAY),
)
"""Bounds of the histogram of delays, in seconds."""

DELIVERIES = (1, 2.5, 5, 10, 30, _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE, _HOUR)
"""Bounds of the histogram of what providers take until they deliver, in seconds."""

_ATTEMPTS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_COMMITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

AT_PROVIDER = ("channel", "provider")
"""The labels of what is counted by provider."""


def _level(name: str, meaning: str, *labels: str, default: Any = 0) -> Any:
    """A field of `Levels`: the gauge `deliveryd_NAME`, or with `_total` a counter, and what it means."""
    described = {"name": f"deliveryd_{name}", "meaning": meaning, "labels": labels}
    if labels:
        return field(default_factory=dict, metadata=described)
    return field(default=default, metadata=described)


@dataclass(frozen=True, slots=True)
class Levels:
    """Current values, each with the gauge that shows it; a mapping is by the values of the gauge's labels.

    Providers stand for their channel and themselves. A value of None is shown by no gauge.
    """

    messages: Mapping[State, int] = _level("messages_in_state", "Messages in the journal by state.", "state")
    outbox: int = _level("outbox_events", "Status events not yet accepted by the service.")
    journal_size: int | None = _level("journal_size_bytes", "Size of the journal's files.")
    providers_open: Mapping[str, bool] = _level(
        "channel_open",
        "1 while an enabled provider keeps failing and only probes are sent.",
        *AT_PROVIDER,
    )
    providers_silent: Mapping[str, bool] = _level(
        "receipts_silent",
        "1 while a provider reports nothing and its receipt deadlines stand still.",
        *AT_PROVIDER,
    )
    shares: Mapping[str, float] = _level(
        "channel_share_ratio",
        "What a provider has of its own share where its channel has slow_after: 1 unless it is slow.",
        *AT_PROVIDER,
    )
    pauses: Mapping[str, int] = _level("paused", "Pauses in force, by what is paused.", "kind")
    paused: int = _level("paused_messages", "Messages that wait for the end of a pause.")
    ready: bool = _level("ready", "1 while messages are being taken.", default=False)
    in_doubt: Mapping[str, int] = _level(
        "messages_in_doubt", "Messages held in doubt, by provider.", *AT_PROVIDER
    )
    oldest_message: float = _level(
        "oldest_waiting_message_age_seconds",
        "Seconds since the take of the oldest message that waits or is under way; 0: there is none.",
    )
    oldest_event: float = _level(
        "oldest_waiting_event_age_seconds",
        "Age of the oldest status event not yet accepted by the service; 0: there is none.",
    )
    in_flight: int = _level("in_flight_slots", "In-flight slots that messages hold.")
    in_flight_limit: int = _level(
        "in_flight_slots_limit", "In-flight slots that there are (queue.max_in_flight)."
    )
    log_dropped: int = _level(
        "log_lines_dropped_total", "Lines that the log lacks, since its reader took none."
    )
    events_failing: int = _level(
        "events_failing", "Messages with a status event that the service fails at, while it accepts others."
    )
    only_to: int | None = _level(
        "safety_only_to_entries", "Entries of safety.only_to; absent: it isn't named."
    )
    budgets_used: Mapping[str, float] = _level(
        "budget_used_ratio", "Share of a budget that is used in its present period, from 0 to 1.", "budget"
    )
    limited: Mapping[str, int] = _level(
        "limited_messages", "Messages that wait for a budget or a cap.", "limit"
    )
    share: float | None = _level("safety_share_ratio", "safety.share, from 0 to 1; absent: it isn't named.")


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


class MetricCounts(Generic[LabelWord]):
    """A family of counters: name, meaning, label names, and the series by label values.

    `ends` are the values of what stands behind the labels of a place, for each place.
    """

    def __init__(self, name: str, meaning: str, labels: Labels, ends: Sequence[Labels]) -> None:
        self.name = name
        self.meaning = meaning
        self.labels = labels
        self.series: Counter[Labels] = Counter()
        self._ends = ends

    def begin(self, *place: str) -> None:
        """Begin the series of a place at 0."""
        for end in self._ends:
            self.series.setdefault((*place, *end), 0)

    def add(self, *words: LabelWord, count: int = 1) -> None:
        """Count something; `words` are the values of the labels."""
        self.series[words] += count

    def add_at(self, provider: str, *, count: int = 1) -> None:
        """Count something of a provider."""
        self.series[channel_of(provider), provider] += count


class Lengths:
    """A family of histograms: name, meaning, label names, and the series by label values."""

    def __init__(self, name: str, meaning: str, labels: Labels, bounds: Sequence[float]) -> None:
        self.name = name
        self.meaning = meaning
        self.labels = labels
        self.series: dict[Labels, Durations] = {}
        self._bounds = bounds

    def begin(self, *place: str) -> None:
        """Begin the series of a place."""
        self.series.setdefault(place, Durations(self._bounds))


Family = TypeVar("Family", MetricCounts[Any], Lengths)


class Metrics:
    """All metrics: the table of families, and what counts in several of them at once.

    What is counted in one family is counted there: `metrics.lost.add()`. All of it is cheap enough to be
    called once per message.
    """

    def __init__(self, providers: Iterable[str], version: str) -> None:
        self.version = version
        self.families: list[MetricCounts[Any] | Lengths] = []
        self.levels: Callable[[], Levels] | None = None
        """What returns the levels that are shown as gauges: called on each scrape, it must not block."""

        self._channels: dict[str, str] = {}
        counts, timed = self._counts, self._timed

        self._taken = counts("messages_taken", "Messages taken from the queue for the first time.")
        self._repeated = counts("messages_repeated", "Messages that the queue delivered again.")
        self._malformed = counts("messages_malformed", "Malformed elements of the queue.")
        self.lost = counts("queue_batches_lost", "Batches that may be lost, partly or entirely.")
        self._takes: MetricCounts[BatchSize] = counts(
            "queue_takes",
            "Answers of the queue: as many messages as were asked for, fewer, or none.",
            batch=get_args(BatchSize),
        )
        self.take_failures: MetricCounts[FailureKind] = counts(
            "queue_take_failures",
            "Requests to the queue without a usable answer.",
            reason=get_args(FailureKind),
        )
        self._ended = counts(
            "messages_ended",
            "Messages that reached an end state.",
            *AT_PROVIDER,
            state=map(_word, sorted(ENDED)),
        )
        self._delays = timed("delivery_delay", "From take to acceptance by a channel.", DELAYS, *AT_PROVIDER)

        self._posts = counts("event_posts", "Posts of status events, whatever the service answered.")
        self._events_posted = counts("events_posted", "Status events in these posts.")
        self.events_accepted = counts("events_accepted", "Status events accepted by the service.")
        self.events_refused = counts("events_refused", "Status events refused for good and set aside.")
        self.post_failures: MetricCounts[FailureKind] = counts(
            "events_post_failures", "Failed posts of status events.", reason=get_args(FailureKind)
        )

        self.settings_requests: MetricCounts[SettingsAnswer] = counts(
            "settings_requests", "Requests for settings.", result=get_args(SettingsAnswer)
        )
        self.settings_hits: MetricCounts[CacheLayer] = counts(
            "settings_cache_hits", "Settings found in a cache.", cache=get_args(CacheLayer)
        )
        self.customers: MetricCounts[CustomerAnswer] = counts(
            "customer_lookups", "Lookups in the directory.", result=get_args(CustomerAnswer)
        )
        self._receipts = counts(
            "receipts", "Receipts from providers.", *AT_PROVIDER, result=get_args(ReceiptResult)
        )
        self.spans: MetricCounts[SpanFate] = counts(
            "otlp_spans", "Spans for the OTLP collector.", result=get_args(SpanFate)
        )
        self.export_failures = counts("otlp_export_failures", "Failed posts to the OTLP collector.")
        self.commits = timed("journal_commit", "Time for one durable commit.", _COMMITS).series[()]
        self._attempts = counts(
            "attempts", "Attempts by verdict.", *AT_PROVIDER, verdict=VERDICT_WORDS.values()
        )
        self.unconfirmed = counts(
            "receipts_unconfirmed", "Messages that weren't confirmed by their receipt deadline.", *AT_PROVIDER
        )
        self.overdue = counts(
            "receipts_overdue", "Messages that weren't confirmed for receipt_overdue.", *AT_PROVIDER
        )
        self._deliveries = timed(
            "delivered_after",
            "From the sending to the delivery that a provider reports.",
            DELIVERIES,
            *AT_PROVIDER,
        )
        self.without_id = counts(
            "accepted_without_id", "Messages accepted without the ID that provider_id names.", *AT_PROVIDER
        )
        self.parts = counts(
            "attempt_parts", "SMS parts of attempts at providers whose rate is in parts.", *AT_PROVIDER
        )
        self.deadlines_dropped = counts(
            "receipt_deadlines_dropped",
            "Receipt deadlines dropped because their provider was removed from the configuration.",
        )
        self._stops = counts(
            "recipients_stopped",
            "Recipients who were suppressed on a channel, and those who may be sent to again.",
            "channel",
            change=_STOPS.values(),
        )
        self._attempt_times = timed("attempt_duration", "Time for one attempt.", _ATTEMPTS, *AT_PROVIDER)
        for family in (self._ended, self._receipts):
            family.begin(NONE, NONE)
        for provider in providers:
            self.add_provider(provider)

    def add_provider(self, provider: str) -> None:
        """Begin the series of a provider; those of a removed one stay, and go on if it is added again."""
        channel = self._channels[provider] = channel_of(provider)
        self._stops.begin(channel)
        for family in self.families:
            if family.labels[:2] == AT_PROVIDER:
                family.begin(channel, provider)

    def taken(self, fresh: int, repeated: int, malformed: int) -> None:
        """Count a batch recorded in the journal."""
        self._taken.add(count=fresh)
        self._repeated.add(count=repeated)
        self._malformed.add(count=malformed)

    def answered(self, asked: int, size: int) -> None:
        """Count an answer of the queue that came whole."""
        self._takes.add("full" if size >= asked else "short" if size else "empty")

    def ended(self, state: State, provider: str | None, count: int = 1) -> None:
        """Count messages that reached an end state, at a provider or at none."""
        self._ended.add(*self._place_of(provider), _word(state), count=count)

    def attempted(self, provider: str, verdict: Verdict, seconds: float) -> None:
        """Count an attempt with its verdict and its duration."""
        channel = self._channels[provider]
        self._attempts.series[channel, provider, VERDICT_WORDS[type(verdict)]] += 1
        self._attempt_times.series[channel, provider].observe(seconds)

    def stop_changed(self, channel: str, stopped: bool) -> None:
        """Count a recipient who stopped a channel, or who may be sent to again."""
        if (channel, _STOPS[stopped]) in self._stops.series:  # the channel may have been removed
            self._stops.add(channel, _STOPS[stopped])

    def accepted_after(self, provider: str, delays: Sequence[float]) -> None:
        """Record the seconds from messages' takes to their acceptance by a provider."""
        self._delays.series[self._channels[provider], provider].observe_all(delays)

    def delivered_after(self, provider: str, seconds: float) -> None:
        """Record how long after its sending a message was delivered; the provider may have been removed."""
        if (channel := self._channels.get(provider)) is not None:
            self._deliveries.series[channel, provider].observe(seconds)

    def deliveries(self, provider: str) -> Durations:
        """Return how long what a provider delivered since the start took."""
        return self._deliveries.series[self._channels[provider], provider]

    def posted(self, count: int) -> None:
        """Count a post of so many status events."""
        self._posts.add()
        self._events_posted.add(count=count)

    def receipt(self, result: ReceiptResult, provider: str | None, times: int = 1) -> None:
        """Count receipts from a provider, or requests that name none."""
        self._receipts.add(*self._place_of(provider), result, count=times)

    def totals(self) -> Totals:
        """Return how many messages were taken and ended since the start."""
        ends = Counter[str]()
        for (_channel, _provider, word), count in self._ended.series.items():
            ends[word] += count
        sent, delivered, failed = (ends[_word(end)] for end in (State.SENT, State.DELIVERED, State.FAILED))
        return Totals(self._taken.series[()], sent, delivered, failed)

    def provider_totals(self, provider: str) -> ProviderTotals:
        """Return what is counted of one provider since the start."""
        place = (self._channels[provider], provider)
        accepted, *failed = (self._attempts.series[*place, word] for word in VERDICT_WORDS.values())
        return ProviderTotals(
            accepted,
            sum(failed),
            self._ended.series[*place, _word(State.DELIVERED)],
            self.unconfirmed.series[place],
            self.overdue.series[place],
        )

    def attempts(self) -> dict[str, int]:
        """Return how many attempts were made since the start, by provider."""
        times = self._attempt_times.series
        return {provider: sum(each.counts) for (_channel, provider), each in times.items()}

    def delays(self) -> tuple[int, ...]:
        """Return the messages accepted since the start by their delay, up to each of `DELAYS` and beyond."""
        return tuple(map(sum, zip(*(each.counts for each in self._delays.series.values()), strict=True)))

    def _place_of(self, provider: str | None) -> tuple[str, str]:
        """Return the labels of a provider."""
        if provider is None or (channel := self._channels.get(provider)) is None:
            return NONE, NONE
        return channel, provider

    def _counts(self, name: str, meaning: str, *place: str, **label: Iterable[str]) -> MetricCounts[Any]:
        """Add a family of counters: by place, if there is one, and by the values of a label."""
        ends: list[Labels] = [(word,) for words in label.values() for word in words] or [()]
        family = MetricCounts[Any](f"deliveryd_{name}", meaning, (*place, *label), ends)
        return self._added(family, place)

    def _timed(self, name: str, meaning: str, bounds: Sequence[float], *place: str) -> Lengths:
        """Add a family of histograms of durations."""
        return self._added(Lengths(f"deliveryd_{name}_seconds", meaning, place, bounds), place)

    def _added(self, family: Family, place: Labels) -> Family:
        self.families.append(family)
        if not place:
            family.begin()
        return family


def _word(state: State) -> str:
    return state.name.lower()
