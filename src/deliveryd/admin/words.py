"""How numbers, lengths of time, sizes and instants are written for those who watch a worker."""

from __future__ import annotations

from deliveryd.model import SECOND, parse_instant

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def figure(value: float) -> str:
    """A number with as many digits as a reader needs."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def measured_time(seconds: float) -> str:
    """Write a measured length of time."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else age(seconds)


def age(seconds: float) -> str:
    """Write an age, without what a reader doesn't need: seconds beside minutes, minutes beside days."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours == 0:
        return f"{minutes} min"
    if days == 0:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def seconds_between(at: str, now: str) -> float:
    """Return the seconds from one instant to another; 0 if it lies ahead."""
    return max(parse_instant(now) - parse_instant(at), 0) / SECOND


def ago(at: str, now: str) -> str:
    """Write how long ago an instant was."""
    return f"{age(seconds_between(at, now))} ago"


def size(number: int) -> str:
    """Write a number of bytes."""
    value, unit = float(number), _SIZES[0]
    for unit in _SIZES:  # noqa: B007 - the last one is used
        if value < 1024:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def time_of_day(at: str, now: str) -> str:
    """Write an instant as its time of day in UTC, with its date if that isn't today."""
    return f"{at[11:19]} UTC" if at[:10] == now[:10] else f"{at[:10]} {at[11:19]} UTC"
