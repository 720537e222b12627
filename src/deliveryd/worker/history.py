"""What a worker did in the last hour, in memory: a bounded number of samples of its counters."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import anyio

from deliveryd.metrics import DELAYS, Metrics, Totals
from deliveryd.telemetry.overview import Points, Rates, SendDelay

SAMPLE_INTERVAL = 1.0
"""Seconds between two samples."""

MINUTES = 600
"""Samples that are kept of each second: ten minutes."""

COARSE_INTERVAL = 10
HOUR = 360
"""Seconds between two samples that are kept for an hour, and how many these are."""


class _Sample(NamedTuple):
    """The counters at one instant of the event loop's time."""

    at: float
    totals: Totals
    attempts: Mapping[str, int]  # by provider
    delays: tuple[int, ...]


class History:
    """Samples of one worker's counters."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._fine: deque[_Sample] = deque([self._read()], maxlen=MINUTES + 1)
        self._coarse: deque[tuple[Rates, SendDelay]] = deque(maxlen=HOUR)
        self._coarse_end = self._fine[0]
        self._hour: Points | None = None

    def sample(self) -> None:
        """Take a sample."""
        sample, before = self._read(), self._coarse_end
        self._fine.append(sample)
        if sample.at - before.at >= COARSE_INTERVAL - SAMPLE_INTERVAL / 2:
            self._coarse.append((_rates(before, sample), _delay(before, sample)))
            self._coarse_end = sample
            self._hour = None

    def _read(self) -> _Sample:
        metrics = self._metrics
        return _Sample(anyio.current_time(), metrics.totals(), metrics.attempts(), metrics.delays())

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

    def delay(self, seconds: float) -> SendDelay:
        """The delay of messages accepted in the last seconds."""
        return _delay(self._since(seconds), self._fine[-1])

    def minutes(self) -> Points:
        """The last ten minutes, by the second."""
        return _points(SAMPLE_INTERVAL, [(_rates(*pair), _delay(*pair)) for pair in pairwise(self._fine)])

    def hour(self) -> Points:
        """The last hour, by ten seconds: the same object until another ten seconds are over."""
        if self._hour is None:
            self._hour = _points(COARSE_INTERVAL, list(self._coarse))
        return self._hour

    def _since(self, seconds: float) -> _Sample:
        """The sample from which on as many seconds are counted: the oldest one that isn't older.

        The one before the last, at least: the loop may have been held up for longer.
        """
        earliest = self._fine[-1].at - seconds - SAMPLE_INTERVAL / 2
        return self._fine[min(bisect_left(self._fine, earliest, key=_at), max(len(self._fine) - 2, 0))]


def _at(sample: _Sample) -> float:
    return sample.at


def _points(interval: float, measured: Sequence[tuple[Rates, SendDelay]]) -> Points:
    return Points(
        interval,
        [rates.taken for rates, _ in measured],
        [rates.sent for rates, _ in measured],
        [rates.delivered for rates, _ in measured],
        [rates.failed for rates, _ in measured],
        [delay.p50 for _, delay in measured],
        [delay.p99 for _, delay in measured],
    )


def _rates(first: _Sample, last: _Sample) -> Rates:
    elapsed = last.at - first.at
    pairs = zip(first.totals, last.totals, strict=True)
    return Rates(*(_per_second(after - before, elapsed) for before, after in pairs))


def _per_second(count: int, elapsed: float) -> float:
    return round(count / elapsed, 3) if elapsed > 0 else 0.0


def _delay(first: _Sample, last: _Sample) -> SendDelay:
    counts = [after - before for before, after in zip(first.delays, last.delays, strict=True)]
    total = sum(counts)
    if not total:
        return SendDelay()
    return SendDelay(_quantile(counts, 0.5 * total), _quantile(counts, 0.99 * total))


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
