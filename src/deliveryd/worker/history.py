"""What a worker did in the last hour, in memory: a bounded number of samples of its counters."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import anyio

from deliveryd.metrics import DELAYS, Metrics, Totals
from deliveryd.overview import Delay, Points, Rates

SAMPLE_INTERVAL = 1.0
"""Seconds between two samples."""

MINUTES = 600
"""Samples that are kept of each second: ten minutes."""

COARSE_INTERVAL = 10
HOUR = 360
"""Seconds between two samples that are kept for an hour, and how many these are."""


class Sample(NamedTuple):
    """The counters at one instant of the event loop's time."""

    at: float
    totals: Totals
    attempts: Mapping[str, int]  # by provider
    delays: tuple[int, ...]


class History:
    """Samples of one worker's counters."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._fine: deque[Sample] = deque(maxlen=MINUTES + 1)
        self._coarse: deque[Sample] = deque(maxlen=HOUR + 1)
        self.sample()

    def sample(self) -> None:
        """Take a sample."""
        metrics = self._metrics
        sample = Sample(anyio.current_time(), metrics.totals(), metrics.attempts(), metrics.delays())
        self._fine.append(sample)
        if not self._coarse or sample.at - self._coarse[-1].at >= COARSE_INTERVAL - SAMPLE_INTERVAL / 2:
            self._coarse.append(sample)

    def rates(self, seconds: float) -> Rates:
        """Messages per second over the last seconds."""
        return _rates(self._since(seconds), self._fine[-1])

    def attempt_rates(self, seconds: float) -> dict[str, float]:
        """Attempts per second over the last seconds, by provider."""
        first, last = self._since(seconds), self._fine[-1]
        elapsed = last.at - first.at
        return {
            name: _per_second(count - first.attempts.get(name, 0), elapsed)
            for name, count in last.attempts.items()
        }

    def delay(self, seconds: float) -> Delay:
        """The delay of messages accepted in the last seconds."""
        return _delay(self._since(seconds), self._fine[-1])

    def minutes(self) -> Points:
        """The last ten minutes, by the second."""
        return _points(SAMPLE_INTERVAL, list(self._fine))

    def hour(self) -> Points:
        """The last hour, by ten seconds."""
        return _points(COARSE_INTERVAL, list(self._coarse))

    def _since(self, seconds: float) -> Sample:
        """The sample from which on as many seconds are counted: the oldest one that isn't older."""
        earliest = self._fine[-1].at - seconds - SAMPLE_INTERVAL / 2
        return self._fine[bisect_left(self._fine, earliest, key=_at)]


def _at(sample: Sample) -> float:
    return sample.at


def _points(interval: float, samples: Sequence[Sample]) -> Points:
    pairs = list(pairwise(samples))
    rates = [_rates(*pair) for pair in pairs]
    delays = [_delay(*pair) for pair in pairs]
    return Points(
        interval,
        [each.taken for each in rates],
        [each.sent for each in rates],
        [each.delivered for each in rates],
        [each.failed for each in rates],
        [each.p50 for each in delays],
        [each.p99 for each in delays],
    )


def _rates(first: Sample, last: Sample) -> Rates:
    elapsed = last.at - first.at
    pairs = zip(first.totals, last.totals, strict=True)
    return Rates(*(_per_second(after - before, elapsed) for before, after in pairs))


def _per_second(count: int, elapsed: float) -> float:
    return round(count / elapsed, 3) if elapsed > 0 else 0.0


def _delay(first: Sample, last: Sample) -> Delay:
    counts = [after - before for before, after in zip(first.delays, last.delays, strict=True)]
    total = sum(counts)
    if not total:
        return Delay()
    return Delay(_quantile(counts, 0.5 * total), _quantile(counts, 0.99 * total))


def _quantile(counts: Sequence[int], rank: float) -> float:
    """The delay of the message with this rank, which lies between two bounds of the histogram.

    Within a bucket the messages count as spread evenly, as in Prometheus.
    """
    below = 0
    for index, count in enumerate(counts[: len(DELAYS)]):
        if below + count >= rank:
            low = DELAYS[index - 1] if index else 0.0
            return round(low + (DELAYS[index] - low) * (rank - below) / count, 3)
        below += count
    return float(DELAYS[-1])
