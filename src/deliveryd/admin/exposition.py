"""The worker's metrics in the formats of Prometheus; only this module loads its library."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from deliveryd.metrics import Durations, Lengths, Levels, MetricCounts, Metrics
from deliveryd.model import channel_of
from deliveryd.states import State


def expose(metrics: Metrics, accept: str) -> tuple[bytes, str]:
    """Return all metrics and their content type, in the format that an Accept header prefers."""
    encode, content_type = choose_encoder(accept)
    return encode(_Everything(metrics)), content_type


class _Everything(Collector):
    """A collector of all metrics, for the library."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return families(self._metrics)


def families(metrics: Metrics) -> Iterator[Metric]:
    """Yield all metrics with their present values."""
    yield from ProcessCollector(registry=None).collect()
    yield InfoMetricFamily("deliveryd", "The running program.", {"version": metrics.version})
    for family in metrics.families:
        yield _counters(family) if isinstance(family, MetricCounts) else _histograms(family)
    if metrics.levels is not None:
        yield from _gauges(metrics.levels())


def _counters(family: MetricCounts) -> Metric:
    told = CounterMetricFamily(family.name, family.meaning, labels=family.labels)
    for labels, count in family.series.items():
        told.add_metric(labels, count)
    return told


def _histograms(family: Lengths) -> Metric:
    told = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
    for labels, durations in family.series.items():
        told.add_metric(labels, _buckets(durations), durations.total)
    return told


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    """Return the number of durations up to each bound."""
    bounds = [*map(floatToGoString, durations.bounds), "+Inf"]
    return list(zip(bounds, accumulate(durations.counts), strict=True))


def _gauges(now: Levels) -> Iterator[Metric]:
    yield GaugeMetricFamily("deliveryd_ready", "1 while messages are being taken.", now.ready)
    messages = GaugeMetricFamily(
        "deliveryd_messages_in_state", "Messages in the journal by state.", labels=["state"]
    )
    for state in State:
        messages.add_metric([state.name.lower()], now.messages.get(state, 0))
    yield messages
    yield GaugeMetricFamily("deliveryd_in_flight_slots", "In-flight slots that messages hold.", now.in_flight)
    yield GaugeMetricFamily(
        "deliveryd_in_flight_slots_limit",
        "In-flight slots that there are (queue.max_in_flight).",
        now.in_flight_limit,
    )
    yield GaugeMetricFamily(
        "deliveryd_outbox_events", "Status events not yet accepted by the service.", now.outbox
    )
    yield GaugeMetricFamily(
        "deliveryd_events_failing",
        "Messages with a status event that the service fails at, while it accepts others.",
        now.events_failing,
    )
    yield CounterMetricFamily(
        "deliveryd_log_lines_dropped",
        "Lines that the log lacks, since its reader took none.",
        now.log_dropped,
    )
    if now.journal_size is not None:
        yield GaugeMetricFamily(
            "deliveryd_journal_size_bytes", "Size of the journal's files.", now.journal_size
        )
    providers = GaugeMetricFamily(
        "deliveryd_channel_open", "1 while an enabled provider keeps failing and only probes are sent.",
        labels=["channel", "provider"],
    )  # fmt: skip
    for provider, is_open in now.providers_open.items():
        providers.add_metric([channel_of(provider), provider], is_open)
    yield providers
    in_doubt = GaugeMetricFamily(
        "deliveryd_messages_in_doubt", "Messages held in doubt, by provider.", labels=["channel", "provider"]
    )
    for provider, count in now.in_doubt.items():
        in_doubt.add_metric([channel_of(provider), provider], count)
    yield in_doubt
    yield GaugeMetricFamily(
        "deliveryd_oldest_waiting_message_age_seconds",
        "Seconds since the take of the oldest message that waits or is under way; 0: there is none.",
        now.oldest_message,
    )
    yield GaugeMetricFamily(
        "deliveryd_oldest_waiting_event_age_seconds",
        "Age of the oldest status event not yet accepted by the service; 0: there is none.",
        now.oldest_event,
    )
    silent = GaugeMetricFamily(
        "deliveryd_receipts_silent",
        "1 while a provider reports nothing and its receipt deadlines stand still.",
        labels=["channel", "provider"],
    )
    for provider, is_silent in now.providers_silent.items():
        silent.add_metric([channel_of(provider), provider], is_silent)
    yield silent
    pauses = GaugeMetricFamily("deliveryd_paused", "Pauses in force, by what is paused.", labels=["kind"])
    for kind, count in now.pauses.items():
        pauses.add_metric([kind], count)
    yield pauses
    yield GaugeMetricFamily(
        "deliveryd_paused_messages", "Messages that wait for the end of a pause.", now.paused
    )
