"""Strict validation of status events (interface 6)."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

STATUSES = frozenset({"dequeued", "sending", "accepted", "sent", "delivered", "error"})

_MICROSECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


def faults_in(event: Any) -> dict[str, str]:
    """Return the problem of each field of this event; empty if it is valid."""
    if not isinstance(event, dict):
        return {"": "the event is not an object"}
    found: dict[str, str] = {}
    if type(event.get("messageId")) is not int:
        found["messageId"] = "an integer is required"
    if event.get("status") not in STATUSES:
        found["status"] = f"one of {', '.join(sorted(STATUSES))} is required"
    _check_instant(event, "timestamp", found)
    if event.get("status") == "delivered":
        _check_instant(event, "reportedAt", found)
        if not isinstance(event.get("channel"), str) or not event["channel"]:
            found["channel"] = "a delivered event names its channel"
    return found


def _check_instant(event: dict[str, Any], field: str, found: dict[str, str]) -> None:
    value = event.get(field)
    if not isinstance(value, str) or not _MICROSECONDS.fullmatch(value):
        found[field] = "YYYY-MM-DDTHH:MM:SS.ffffffZ is required"
        return
    try:
        datetime.fromisoformat(value)
    except ValueError:
        found[field] = "there is no such instant"
