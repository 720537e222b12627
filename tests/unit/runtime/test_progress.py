"""Progress of long work in the log."""

from __future__ import annotations

import sqlite3

import pytest

from deliveryd.journal.sqlite import upgrades
from deliveryd.telemetry import log_events
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


def test_a_long_upgrade_reports_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """From within SQLite's own work, and once more in the end."""
    monkeypatch.setattr(log_events, "REPORT_INTERVAL", 0.0)
    db = sqlite3.connect(":memory:")
    long = (
        "CREATE TABLE t AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)"
        " SELECT i FROM n"
    )
    with log_lines("info") as lines:
        upgrades.upgrade(db, upgrades.FIRST_FORMAT, [long])
        db.execute("SELECT count(*) FROM t").fetchall()
    db.close()
    events = [line["event"] for line in lines()]
    assert events[-1] == "journal.upgraded"
    assert set(events[:-1]) == {"journal.upgrading"}
