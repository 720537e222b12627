"""What the status page makes of numbers, and what of an overview it points at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deliveryd.admin.plots import plot
from deliveryd.admin.sections import (
    age,
    ago,
    channel_rows,
    facts_of,
    figure,
    level_of,
    measured_time,
    notices_of,
    size,
)
from deliveryd.telemetry.overview import Disk, LimitView, Paused
from support.overviews import BUSY, DOWN, IDLE, provider


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (3660, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_ages(seconds: float, words: str) -> None:
    assert age(seconds) == words


def test_lengths_sizes_and_figures() -> None:
    assert [measured_time(each) for each in (0.042, 1.84, 75)] == ["42 ms", "1.8 s", "1 min"]
    assert [size(each) for each in (0, 1023, 1536, 180 << 30)] == ["0 B", "1023 B", "1.5 KiB", "180 GiB"]
    assert [figure(each) for each in (0, 0.012, 2.44, 53, 1984.2)] == ["0", "0.012", "2.4", "53", "1,984"]


def test_an_instant_ahead_is_now() -> None:
    """The clock may have been put back since."""
    assert ago("2026-11-22T10:00:05Z", "2026-11-22T10:00:00Z") == "0 s ago"


def test_an_idle_worker_has_nothing_to_look_at() -> None:
    assert notices_of(IDLE) == []
    assert level_of(IDLE, []) == "good"


def test_the_most_urgent_comes_first() -> None:
    found = notices_of(DOWN)
    assert (found[0].about, found[0].level) == ("sms", "bad")
    assert level_of(DOWN, found) == "fair"
    assert level_of(replace(IDLE, alive=False), []) == level_of(replace(IDLE, ready=False), []) == "bad"


def test_a_disk_that_fills_is_told_before_it_is_full() -> None:
    def told(free: int) -> list[str]:
        return [notice.level for notice in notices_of(replace(IDLE, disk=Disk(free, 64 << 20)))]

    assert [told(free << 20) for free in (200, 100, 60)] == [[], ["fair"], ["bad"]]


def test_a_slow_provider_is_told_with_what_it_has_of_its_share() -> None:
    """One that isn't slow, or isn't judged, shows nothing of it; a rate in parts shows its unit."""
    shares = {"sms/a": 0.8, "sms/b": 1.0, "email": None}
    providers = [provider(name, share=share, rate_limit="50 parts/s") for name, share in shares.items()]
    slow = replace(IDLE, providers=providers)
    assert [(each.about, each.text) for each in notices_of(slow)] == [
        ("sms/a", "Has 80% of its share: its deliveries took longer than slow_after.")
    ]
    rows = [row for _, rows in channel_rows(slow) for row in rows]
    assert [row.state.text for row in rows] == ["slow", "up", "up"]
    assert rows[0].state.aside == "80% of its share"
    assert rows[0].cells()["rate"].aside == "of 50 parts/s"


def test_a_budget_is_pointed_at_from_80_percent_on_and_a_cap_while_messages_wait() -> None:
    """With what is used, how many messages wait, and until when."""

    def told(*limits: LimitView) -> list[tuple[str, str, str | None]]:
        return [(each.about, each.text, each.at) for each in notices_of(replace(IDLE, limits=limits))]

    until = "2026-11-23T00:00:00.000000Z"
    budget = LimitView("budget", "channel sms", "1000 parts/day", 0, 799, 1000, until)
    assert not told(budget, LimitView("cap", "settings 1", "3 messages per customer within 7d", 0))
    assert told(replace(budget, used=1000, waiting=2)) == [
        ("Budget of channel sms", "1,000 of 1000 parts/day are used. 2 messages wait.", until)
    ]
    assert told(LimitView("cap", "settings 1", "3 messages per customer within 7d", 1)) == [
        ("Cap of settings 1", "3 messages per customer within 7d. 1 message waits.", None)
    ]


def test_one_and_many_are_told_apart() -> None:
    [notice] = notices_of(replace(BUSY, providers=[replace(BUSY.providers[0], in_doubt=1)]))
    assert notice.text == "1 message is held in doubt for a decision: see deliveryd in-doubt list."


def test_a_plot_has_gaps_where_nothing_was_measured() -> None:
    drawn = plot("Delay", " s", ("p99", [1.0, None, 2.0, 2.0]), ("p50", [None, None]))
    assert drawn.count("M") == 2 + 2  # two stretches, as an area and as a line
    assert 'aria-label="Delay in the last hour: highest 2 s"' in drawn
    assert "NaN" not in plot("Sent", "/s", ("sent", [])) + plot("Sent", "/s", ("sent", [0.0]))


def test_what_waits_is_counted_by_what_it_waits_for() -> None:
    """The most first, behind the sum."""
    (waiting,) = [fact for fact in facts_of(BUSY) if fact.name == "waiting"]
    assert (waiting.number, waiting.asides[-3:]) == (
        "1,204",
        ["1,017 for providers", "170 for windows", "17 for settings"],
    )


def test_settings_that_cost_guard_paused_are_pointed_at() -> None:
    """Nobody ordered it, so that nobody may know; what an operator paused is no notice."""
    at = "2026-11-22T09:00:00.000000Z"
    by_operator = Paused("settings", "1", at, None, 3, "root", None, "a typo")
    by_guard = Paused("settings", "950", at, None, 40, None, "cost_guard", "3.00 SMS parts per message")
    [notice] = notices_of(replace(IDLE, paused=[by_operator, by_guard]))
    assert notice.about == "Settings 950"
    assert "3.00 SMS parts per message" in notice.text
    assert "deliveryd resume settings 950" in notice.text
