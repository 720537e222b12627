"""Reads the times in reports: ISO 8601, seconds or milliseconds since 1970, or a pattern of strptime."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from zoneinfo import ZoneInfo

from deliveryd.channels.receipt_options import ISO, UNIX, UNIX_MS
from deliveryd.model import SECOND, parse_instant

EARLIEST = 946_684_800_000_000
"""The year 2000. Earlier times stand for none: the zero of a program, such as 0001-01-01 or 1970-01-01."""

HOW_FAR_AHEAD = 24 * 3600 * SECOND
"""After the arrival: more than zones and clocks differ. Later times stand for none, too: 9999-12-31."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS_FROM = 100_000_000_000  # in seconds, this would be the year 5138
_MOST = 1e14

ReadTime = Callable[[str], int]
"""Returns an instant. Raises ValueError."""


def compile_time(format_: str, zone: str | None) -> ReadTime:
    """Return what reads times of a format; without an offset they are of this zone, or UTC."""
    local = ZoneInfo(zone) if zone is not None else UTC
    if format_ == ISO:
        return _read_iso if zone is None else partial(_read_local_iso, local)
    if format_ in (UNIX, UNIX_MS):
        return partial(read_unix, in_milliseconds=format_ == UNIX_MS)
    return partial(_read_pattern, format_, local)


def _read_iso(text: str) -> int:
    """Read ISO 8601; a number is seconds or milliseconds since 1970."""
    return read_unix(text) if _is_number(text) else parse_instant(text)


def _read_local_iso(zone: tzinfo, text: str) -> int:
    if _is_number(text):
        return read_unix(text)
    return parse_instant(_in_zone(datetime.fromisoformat(text), zone).isoformat())


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal() and len(text) < 32


def read_unix(text: str, *, in_milliseconds: bool = False) -> int:
    """Read seconds since 1970, or milliseconds if it is too large for seconds. Raises ValueError."""
    value = float(text)
    if not 0 <= value < _MOST:
        raise ValueError("not within the years that can be represented")
    if in_milliseconds or value >= _MILLISECONDS_FROM:
        value /= 1000
    return timedelta(seconds=value) // timedelta(microseconds=1)


def _read_pattern(pattern: str, zone: tzinfo, text: str) -> int:
    moment = datetime.strptime(text, pattern)  # noqa: DTZ007  # without an offset it is of the zone
    return (_in_zone(moment, zone) - _EPOCH) // timedelta(microseconds=1)


def _in_zone(moment: datetime, zone: tzinfo) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
