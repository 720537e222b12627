"""The worker's numbers for Prometheus, in a registry of their own.

Labels hold names of configured channels and words of fixed sets, never ids, so that the number of series is
known in advance; all of them start at 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from deliveryd.channels.base import Accepted, InDoubt, Misconfigured, Refused, TryAgain, Verdict
from deliveryd.states import ENDED, State

Failure = Literal["unavailable", "refused", "unreadable"]
"""The three ways in which the service doesn't do what was asked."""

SettingsAnswer = Literal["found", "unusable", "unavailable"]
CacheLayer = Literal["memory", "disk"]
CustomerAnswer = Literal["found", "unknown", "unavailable"]
ReceiptResult = Literal["accepted", "repeated", "unmatched", "forged", "malformed"]

_VERDICTS: dict[type[Verdict], str] = {
    Accepted: "accepted",
    Refused: "refused",
    TryAgain: "try_again",
    InDoubt: "in_doubt",
    Misconfigured: "misconfigured",
}

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_DELAYS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 6 * _HOUR, _DAY)
_ATTEMPTS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_COMMITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


@dataclass(frozen=True, slots=True)
class Levels:
    """What there is right now: messages per state, events not yet accepted, bytes of the journal's files,
    and of each channel whether its breaker is open.
    """

    messages: Mapping[State, int]
    outbox: int
    journal_size: int
    channels_open: Mapping[str, bool]


class Metrics:
    """Everything that is counted. Each method is cheap enough to be called once per message."""

    def __init__(self, channels: Iterable[str], version: str) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        ProcessCollector(registry=registry)
        Info("deliveryd", "The running program.", registry=registry).info({"version": version})
        families = _Families(registry)
        plain, by = families.plain, families.labelled

        self._taken = plain("messages_taken", "Messages taken from the queue for the first time.")
        self._repeated = plain("messages_repeated", "Messages that the queue gave again.")
        self._malformed = plain("messages_malformed", "Elements of the queue that are no messages.")
        self._take_failures = by(
            "queue_take_failures", "Takes without a usable answer.", reason=get_args(Failure)
        )
        self._ended = by(
            "messages_ended", "Messages that came to a state of rest.", state=map(_word, sorted(ENDED))
        )
        self._delay = families.seconds("delivery_delay", "From take to acceptance by a channel.", _DELAYS)

        self._events_accepted = plain("events_accepted", "Status events accepted by the service.")
        self._events_refused = plain("events_refused", "Status events refused for good and set aside.")
        self._post_failures = by(
            "events_post_failures", "Failed posts of status events.", reason=get_args(Failure)
        )

        self._settings = by("settings_requests", "Requests for settings.", result=get_args(SettingsAnswer))
        self._settings_hits = by(
            "settings_cache_hits", "Settings found in a cache.", cache=get_args(CacheLayer)
        )
        self._customers = by("customer_lookups", "Lookups in the directory.", result=get_args(CustomerAnswer))
        self._receipts = by("receipts", "Updates that providers sent in.", result=get_args(ReceiptResult))
        self._commits = families.seconds("journal_commit", "Time for one durable commit.", _COMMITS)
        names = tuple(channels)
        self._attempts = families.tally(
            "attempts",
            "Attempts by verdict.",
            ("channel", "verdict"),
            [(name, word) for name in names for word in _VERDICTS.values()],
        )
        self._attempt_seconds = families.seconds_by(
            "attempt_duration", "Time for one attempt.", _ATTEMPTS, channel=names
        )

    def taken(self, fresh: int, repeated: int, malformed: int) -> None:
        """A batch from the queue is in the journal."""
        self._taken.inc(fresh)
        self._repeated.inc(repeated)
        self._malformed.inc(malformed)

    def take_failed(self, reason: Failure) -> None:
        """The queue gave no usable answer."""
        self._take_failures.labels(reason).inc()

    def ended(self, state: State, count: int = 1) -> None:
        """Messages came to one of the states in which the line is done with them."""
        self._ended.labels(_word(state)).inc(count)

    def attempted(self, channel: str, verdict: Verdict, seconds: float) -> None:
        """An attempt took so long and came to this."""
        self._attempts[channel, _VERDICTS[type(verdict)]] += 1
        self._attempt_seconds[channel].observe(seconds)

    def accepted_after(self, seconds: float) -> None:
        """A channel accepted a message that was taken so many seconds ago."""
        self._delay.observe(seconds)

    def events_accepted(self, count: int) -> None:
        """The service accepted status events."""
        self._events_accepted.inc(count)

    def events_refused(self, count: int) -> None:
        """The service refused status events for good."""
        self._events_refused.inc(count)

    def post_failed(self, reason: Failure) -> None:
        """A post of status events failed."""
        self._post_failures.labels(reason).inc()

    def settings_requested(self, result: SettingsAnswer) -> None:
        """The service was asked for settings."""
        self._settings.labels(result).inc()

    def settings_cached(self, cache: CacheLayer) -> None:
        """Settings were found without asking the service."""
        self._settings_hits.labels(cache).inc()

    def customers_looked_up(self, found: int, asked: int) -> None:
        """The customer directory was asked for so many customers, and knew some of them."""
        self._customers.labels("found").inc(found)
        self._customers.labels("unknown").inc(asked - found)

    def customers_unavailable(self, asked: int) -> None:
        """The customer directory gave no answer."""
        self._customers.labels("unavailable").inc(asked)

    def receipt(self, result: ReceiptResult) -> None:
        """A provider's update came in."""
        self._receipts.labels(result).inc()

    def committed(self, seconds: float) -> None:
        """The journal made a commit durable."""
        self._commits.observe(seconds)

    def follow(self, levels: Callable[[], Levels]) -> None:
        """Show these levels as gauges; they are asked for once per scrape and have to be at hand."""
        self._registry.register(_LevelGauges(levels))

    def expose(self, accept: str) -> tuple[bytes, str]:
        """All numbers and their content type, in the format that an Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(_WithoutCreated(self._registry)), content_type


class _Families:
    """Makes families of series under the program's own prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def plain(self, name: str, meaning: str) -> Counter:
        """A counter without labels."""
        return Counter(f"deliveryd_{name}", meaning, registry=self._registry)

    def labelled(self, name: str, meaning: str, **label: Iterable[str]) -> Counter:
        """A counter with one label, given with all the words it may have; each of them starts at 0."""
        [(label_name, words)] = label.items()
        family = Counter(f"deliveryd_{name}", meaning, [label_name], registry=self._registry)
        for word in words:
            family.labels(word)
        return family

    def tally(
        self, name: str, meaning: str, labels: Sequence[str], series: Iterable[tuple[str, ...]]
    ) -> dict[tuple[str, ...], int]:
        """A counter for what happens to each message: numbers in a dictionary, cheaper than the library's."""
        counts = dict.fromkeys(series, 0)
        self._registry.register(
            _Tally(CounterMetricFamily(f"deliveryd_{name}", meaning, labels=labels), counts)
        )
        return counts

    def seconds(self, name: str, meaning: str, bounds: Sequence[float]) -> _Durations:
        """A histogram of lengths of time."""
        durations = _Durations(bounds)
        histogram = HistogramMetricFamily(f"deliveryd_{name}_seconds", meaning, labels=())
        self._registry.register(_Histogram(histogram, {(): durations}))
        return durations

    def seconds_by(
        self, name: str, meaning: str, bounds: Sequence[float], **label: Iterable[str]
    ) -> Mapping[str, _Durations]:
        """Histograms of lengths of time, one for each word of a label."""
        [(label_name, words)] = label.items()
        durations = {word: _Durations(bounds) for word in words}
        histogram = HistogramMetricFamily(f"deliveryd_{name}_seconds", meaning, labels=[label_name])
        self._registry.register(_Histogram(histogram, {(word,): each for word, each in durations.items()}))
        return durations


class _Durations:
    """How often which lengths of time occurred: a bound belongs to what is below it."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """One more of this length."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """How many were no longer than each bound, and the sum of all."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True)), self._sum


class _Tally(Collector):
    """A family of counters, by the values of its labels."""

    def __init__(self, family: CounterMetricFamily, counts: Mapping[tuple[str, ...], int]) -> None:
        self._family = family
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        self._family.samples = []
        for labels, count in self._counts.items():
            self._family.add_metric(labels, count)
        yield self._family


class _Histogram(Collector):
    """A family of histograms, by the values of its labels.

    The library's own histogram costs a message more than its rendering does.
    """

    def __init__(self, family: HistogramMetricFamily, series: Mapping[tuple[str, ...], _Durations]) -> None:
        self._family = family
        self._series = series

    def collect(self) -> Iterator[Metric]:
        self._family.samples = []
        for labels, durations in self._series.items():
            self._family.add_metric(labels, *durations.buckets())
        yield self._family


def _word(state: State) -> str:
    return state.name.lower()


class _LevelGauges(Collector):
    """Turns the levels of the moment into gauges."""

    def __init__(self, levels: Callable[[], Levels]) -> None:
        self._levels = levels

    def collect(self) -> Iterator[Metric]:
        now = self._levels()
        messages = GaugeMetricFamily(
            "deliveryd_messages_in_state", "Messages in the journal by state.", labels=["state"]
        )
        for state in State:
            messages.add_metric([_word(state)], now.messages.get(state, 0))
        yield messages
        yield GaugeMetricFamily(
            "deliveryd_outbox_events", "Status events not yet accepted by the service.", now.outbox
        )
        yield GaugeMetricFamily(
            "deliveryd_journal_size_bytes", "Size of the journal's files.", now.journal_size
        )
        channels = GaugeMetricFamily(
            "deliveryd_channel_open", "1 while a provider keeps failing and only probes are sent.",
            labels=["channel"],
        )  # fmt: skip
        for channel, is_open in now.channels_open.items():
            channels.add_metric([channel], is_open)
        yield channels

    def describe(self) -> Iterator[Metric]:
        """Name nothing in advance: the levels may not be at hand yet when this collector is registered."""
        return iter(())


class _WithoutCreated(Collector):
    """The registry without the creation times, which would double the number of series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
