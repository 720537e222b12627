"""Progress of long work in the log."""

from __future__ import annotations

from deliveryd.telemetry.log_events import REPORT_INTERVAL, Event, LoggedProgress
from support.logs import log_lines


def test_progress_is_logged_at_intervals() -> None:
    """Nothing at first, then one line for each interval, with the count so far."""
    now = 0.0
    with log_lines("info") as lines:
        work = LoggedProgress(Event.JOURNAL_CLEANING, lambda: now)
        for step in range(41):
            now = step * REPORT_INTERVAL / 20
            work.add(100)
    assert [(line["count"], line["seconds"]) for line in lines()] == [(2100, 10.0), (4100, 20.0)]
