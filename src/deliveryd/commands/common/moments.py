"""Instants and durations as commands print them."""

from __future__ import annotations

from collections.abc import Mapping

from deliveryd.model import SECOND, format_instant

MILLISECOND = 1000


def moment(instant: int) -> str:
    """Format an instant: UTC, milliseconds."""
    return f"{format_instant(instant)[:23]}Z"


def length(microseconds: int) -> str:
    """Format a duration in microseconds, in units that suit its length."""
    if microseconds < 60 * SECOND:
        return f"{microseconds // MILLISECOND / 1000:.3f} s"
    minutes, seconds = divmod(microseconds // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days} d ' if days else ''}{hours}:{minutes:02}:{seconds:02}"


def with_instants(record: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a record with its instants as in events: `at`, `since`, and those in `_at`."""
    return {
        name: format_instant(value)
        if isinstance(value, int) and (name in ("at", "since") or name.endswith("_at"))
        else value
        for name, value in record.items()
    }
