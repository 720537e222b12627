"""Parses `Retry-After`, in both of its forms (RFC 9110, 10.2.3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

Now = Callable[[], datetime]
"""Returns the instant from which pauses count."""


def utc_now() -> datetime:
    """Return the time of the machine."""
    return datetime.now(UTC)


def retry_after(value: str | None, longest: float, now: Now = utc_now) -> float | None:
    """Return the seconds from now, at most `longest`; None for a missing or invalid value."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), longest)
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - now()).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):  # OverflowError: for years out of range
        return None
    return min(max(seconds, 0.0), longest)
