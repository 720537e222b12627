"""Progress of long work in the log: a line at intervals, none for work that is soon done."""

from __future__ import annotations

import time
from collections.abc import Callable

from deliveryd.telemetry.log_events import Event, log

REPORT_INTERVAL = 10.0
"""Seconds between two lines about the same work."""


class LoggedProgress:
    """Counts work, and logs the count and the seconds since the beginning as an event."""

    def __init__(self, event: Event, now: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._now = now
        self._begun = now()
        self._due = self._begun + REPORT_INTERVAL
        self.count = 0

    def add(self, count: int) -> None:
        """Count more work; log the progress if it is time."""
        self.count += count
        now = self._now()
        if now >= self._due:
            self._due = now + REPORT_INTERVAL
            log(self._event, count=self.count, seconds=now - self._begun)

    @property
    def seconds(self) -> float:
        """Return how long the work has taken."""
        return self._now() - self._begun
