"""The forms of ISO 8601 that name one instant, beside the usual one."""

from __future__ import annotations

import re
from datetime import date, timedelta

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_EPOCH = date(1970, 1, 1)
_LONGEST = 64

_FORM = re.compile(
    r"""
    (?P<year>\d{4})
    (?: -?(?P<month>\d\d)-?(?P<day>\d\d) | -?W(?P<week>\d\d)-?(?P<weekday>\d) | -?(?P<ordinal>\d{3}) )
    [T\ ]
    (?P<hour>\d\d) (?: :?(?P<minute>\d\d) (?: :?(?P<second>\d\d) )? )? (?: [.,](?P<fraction>\d+) )?
    (?: Z | (?P<sign>[-+\u2212])(?P<off_hour>\d\d) (?: :?(?P<off_minute>\d\d) )? )?
    """,
    re.ASCII | re.VERBOSE,
)


def read_instant(text: str) -> int:
    """Return the microseconds since 1970-01-01 UTC; without an offset it is UTC. Raises ValueError.

    Dates of the calendar, of weeks and of days of the year, with or without separators; a fraction of the
    last part; 24:00 as the end of a day; and a leap second, at the end of a month, as the instant after it.
    """
    found = _FORM.fullmatch(text.upper()) if len(text) <= _LONGEST else None
    if found is None or not _is_time(found):
        raise _unreadable(text)
    try:
        instant = (_date(found) - _EPOCH).days * _DAY + _in_day(found) - _offset(found)
    except (ValueError, OverflowError):
        raise _unreadable(text) from None
    if found["second"] == "60" and not _begins_month(instant // _SECOND):
        raise _unreadable(text)
    if not (date.min - _EPOCH).days * _DAY <= instant < ((date.max - _EPOCH).days + 1) * _DAY:
        raise ValueError(f"not within the years 1 to 9999: {text[:40]!r}")
    return instant


def _unreadable(text: str) -> ValueError:
    return ValueError(f"not an ISO 8601 instant: {text[:40]!r}")


def _is_time(found: re.Match[str]) -> bool:
    if found["minute"] is None and found["fraction"] is None:  # an hour, not an instant
        return False
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    is_end = hour == 24 and minute == second == int(found["fraction"] or 0) == 0
    offset_fits = int(found["off_hour"] or 0) < 24 and int(found["off_minute"] or 0) < 60
    return (hour < 24 or is_end) and minute < 60 and second <= 60 and offset_fits


def _date(found: re.Match[str]) -> date:
    year = int(found["year"])
    if found["week"] is not None:
        return date.fromisocalendar(year, int(found["week"]), int(found["weekday"]))
    if found["ordinal"] is None:
        return date(year, int(found["month"]), int(found["day"]))
    day = date(year, 1, 1) + timedelta(int(found["ordinal"]) - 1)
    if day.year != year:
        raise ValueError
    return day


def _in_day(found: re.Match[str]) -> int:
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    unit = 3600 if found["minute"] is None else 60 if found["second"] is None else 1
    digits = found["fraction"] or "0"
    return (hour * 3600 + minute * 60 + second) * _SECOND + int(digits) * unit * _SECOND // int(
        10 ** len(digits)
    )


def _offset(found: re.Match[str]) -> int:
    seconds = int(found["off_hour"] or 0) * 3600 + int(found["off_minute"] or 0) * 60
    return (seconds if found["sign"] == "+" else -seconds) * _SECOND


def _begins_month(second: int) -> bool:
    days, rest = divmod(second, _DAY // _SECOND)
    return rest == 0 and (_EPOCH + timedelta(days)).day == 1
