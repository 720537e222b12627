"""The worker's metrics in the formats of Prometheus; only this module loads its library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any

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

from deliveryd.metrics import AT_PROVIDER, Durations, Labels, Lengths, Levels, MetricCounts, Metrics
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


def _counters(family: MetricCounts[Any]) -> Metric:
    exposed = CounterMetricFamily(family.name, family.meaning, labels=family.labels)
    for labels, count in family.series.items():
        exposed.add_metric(labels, count)
    return exposed


def _histograms(family: Lengths) -> Metric:
    exposed = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
    for labels, durations in family.series.items():
        exposed.add_metric(labels, _buckets(durations), durations.total)
    return exposed


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    """Return the number of durations up to each bound."""
    bounds = [*map(floatToGoString, durations.bounds), "+Inf"]
    return list(zip(bounds, accumulate(durations.counts), strict=True))


def _gauges(now: Levels) -> Iterator[Metric]:
    for field in fields(now):
        value, labels = getattr(now, field.name), field.metadata["labels"]
        if value is None:
            continue
        name, meaning = field.metadata["name"], field.metadata["meaning"]
        family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        exposed = family(name, meaning, labels=labels)
        for words, number in _series(labels, value):
            exposed.add_metric(words, number)
        yield exposed


def _series(labels: Labels, value: Any) -> Iterator[tuple[Sequence[str], float]]:
    """Yield the values of the labels of each series, and the number."""
    match labels:
        case ():
            yield (), value
        case ("state",):
            yield from (((state.name.lower(),), value.get(state, 0)) for state in State)
        case _ if labels == AT_PROVIDER:
            yield from (((channel_of(provider), provider), number) for provider, number in value.items())
        case _:
            yield from (((word,), number) for word, number in value.items())
