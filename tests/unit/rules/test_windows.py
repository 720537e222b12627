"""When a window opens, by the wall clock of a zone, also where that clock is changed."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveryd.model import format_instant
from deliveryd.rules.windows import Window, parse_days, parse_time, zone_named

BERLIN = ZoneInfo("Europe/Berlin")
DAILY = Window(frozenset(range(7)), time(8), time(20))


def instant(text: str) -> int:
    moment = datetime.fromisoformat(text).astimezone(UTC)
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


def opens(window: Window, at: str, zone: ZoneInfo = BERLIN) -> str | None:
    """The wall time at which it opens, with the offset."""
    opening = window.opening(instant(at), zone)
    if opening is None:
        return None
    return datetime.fromtimestamp(opening / 1e6, zone).isoformat()


@pytest.mark.parametrize(
    ("at", "opening"),
    [
        ("2026-11-27T07:59:59+01:00", "2026-11-27T08:00:00+01:00"),
        ("2026-11-27T08:00:00+01:00", "2026-11-27T08:00:00+01:00"),
        ("2026-11-27T19:59:59+01:00", "2026-11-27T19:59:59+01:00"),
        ("2026-11-27T20:00:00+01:00", "2026-11-28T08:00:00+01:00"),
        ("2026-11-28T20:00:00+01:00", "2026-11-30T08:00:00+01:00"),  # Sunday is no day of it
        ("2026-12-24T21:00:00+01:00", "2026-12-28T08:00:00+01:00"),  # holidays on Friday and Saturday
    ],
)
def test_days_times_and_holidays(at: str, opening: str) -> None:
    """From its first moment to before its last, on its days."""
    window = Window(parse_days("Mon-Sat"), time(8), time(20), {date(2026, 12, 25), date(2026, 12, 26)})
    assert opens(window, at) == opening


@pytest.mark.parametrize(
    ("at", "opening"),
    [
        ("2026-11-27T23:00:00+01:00", "2026-11-27T23:00:00+01:00"),
        ("2026-11-28T05:59:00+01:00", "2026-11-28T05:59:00+01:00"),
        ("2026-11-28T06:00:00+01:00", "2026-12-04T22:00:00+01:00"),
        ("2026-11-27T05:00:00+01:00", "2026-11-27T22:00:00+01:00"),
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_on_which_it_opens(at: str, opening: str) -> None:
    """Friday night is open until Saturday morning."""
    assert opens(Window(parse_days("Fri"), time(22), time(6)), at) == opening


@pytest.mark.parametrize(
    ("begin", "at", "opening"),
    [
        (8, "2026-03-28T21:00:00+01:00", "2026-03-29T08:00:00+02:00"),
        (8, "2026-10-24T21:00:00+02:00", "2026-10-25T08:00:00+01:00"),
        (2, "2026-03-29T01:59:00+01:00", "2026-03-29T03:00:00+02:00"),  # 02:00 to 03:00 is skipped
        (2, "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+02:00"),  # and comes twice
        (2, "2026-10-25T02:30:00+01:00", "2026-10-25T02:30:00+01:00"),
    ],
)
def test_both_changes_of_daylight_saving(begin: int, at: str, opening: str) -> None:
    """The wall clock counts, whatever its offset is."""
    assert opens(DAILY._replace(begin=time(begin)), at) == opening


def test_a_window_that_begins_within_the_hour_that_is_skipped_or_comes_twice() -> None:
    """It opens when the clock shows a time within it: at the change, and each time that it comes."""
    window = DAILY._replace(begin=time(2, 30))
    assert opens(window, "2026-03-29T01:59:00+01:00") == "2026-03-29T03:00:00+02:00"
    assert opens(window, "2026-10-25T02:10:00+02:00") == "2026-10-25T02:30:00+02:00"
    assert opens(window, "2026-10-25T02:10:00+01:00") == "2026-10-25T02:30:00+01:00"


@pytest.mark.parametrize(
    ("zone", "at", "opening"),
    [
        ("Pacific/Kiritimati", "2026-11-27T17:59:00+00:00", "2026-11-28T08:00:00+14:00"),
        ("Pacific/Kiritimati", "2026-11-27T06:00:00+00:00", "2026-11-28T08:00:00+14:00"),
        ("Australia/Lord_Howe", "2026-10-03T15:00:00+00:00", "2026-10-04T08:00:00+11:00"),
        ("Australia/Lord_Howe", "2027-04-03T14:50:00+00:00", "2027-04-04T08:00:00+10:30"),
        ("Asia/Kathmandu", "2026-11-27T02:00:00+00:00", "2026-11-27T08:00:00+05:45"),
    ],
)
def test_zones_of_other_offsets(zone: str, at: str, opening: str) -> None:
    """A day ahead, and with half an hour of daylight saving."""
    assert opens(DAILY, at, ZoneInfo(zone)) == opening


def test_a_window_whose_days_are_all_holidays_never_opens() -> None:
    """There is no instant to wait for."""
    days = {date(2026, 1, 1) + timedelta(day) for day in range(1000)}
    assert opens(DAILY._replace(holidays=days), "2026-11-27T12:00:00+01:00") is None


@given(
    st.integers(0, 2 * 365 * 24 * 60),
    st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "Africa/Casablanca", "UTC"]),
    st.times(),
    st.times(),
    st.frozensets(st.integers(0, 6), min_size=1),
)
def test_it_opens_at_the_first_moment_at_which_the_clock_shows_a_time_within_it(
    minutes: int, zone: str, begin: time, end: time, days: frozenset[int]
) -> None:
    """Whatever is looked at minute by minute before it is closed."""
    begin, end = (each.replace(second=0, microsecond=0, fold=0) for each in (begin, end))
    window, there = Window(days, begin, end), ZoneInfo(zone)
    now = instant("2026-01-01T00:00:00+00:00") + minutes * 60_000_000
    opening = window.opening(now, there)
    assert opening is not None, format_instant(now)
    assert window.opening(opening, there) == opening
    minute = 60_000_000
    for earlier in range(max(now, opening - 300 * minute), opening, minute):
        assert window.opening(earlier, there) == opening


@pytest.mark.parametrize(
    ("text", "days"),
    [("Mon-Fri", {0, 1, 2, 3, 4}), ("Sat-Mon", {5, 6, 0}), ("Mon, Wed,Sat-Sun", {0, 2, 5, 6}), ("Sun", {6})],
)
def test_days_are_read(text: str, days: set[int]) -> None:
    """Also over the end of a week."""
    assert parse_days(text) == days


@pytest.mark.parametrize("text", ["", "mon", "Mon-", "Mon-Fri-Sat", "Monday", "Mon;Tue"])
def test_what_is_no_day_is_named(text: str) -> None:
    """By an example of what is one."""
    with pytest.raises(ValueError, match="expected days such as"):
        parse_days(text)


def test_times_are_read() -> None:
    """To the minute."""
    assert (parse_time("08:30"), parse_time("24:00")) == (time(8, 30), time(0))
    for wrong in ("8:00", "25:00", "08:60", "08:00:00", "0800", ""):
        with pytest.raises(ValueError, match="expected a time such as"):
            parse_time(wrong)


@pytest.mark.parametrize(
    "name", ["Europe/Brlin", "../../etc/passwd", "/etc/localtime", "", "Europe", "\0", "x" * 300]
)
def test_a_zone_that_does_not_exist_is_none(name: str) -> None:
    """Whatever a directory holds in its place."""
    assert zone_named(name) is None
    assert zone_named("Europe/Berlin") == BERLIN
