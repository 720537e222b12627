"""How long an answer may be cached, by its headers (RFC 9111)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

LONGEST_FRESHNESS = 10 * 365 * 86400.0

_DIRECTIVE = re.compile(r'([A-Za-z-]+)(?:\s*=\s*(?:"([^"]*)"|([^\s,;"]+)))?')


class Freshness(NamedTuple):
    """Whether an answer may be cached, and for how many seconds; None: not specified."""

    may_be_kept: bool
    seconds: float | None


def freshness(headers: Mapping[str, str]) -> Freshness:
    """Parse `Cache-Control` and `Age` as a private cache; unparsable values mean 0 s."""
    said = {
        match[1].lower(): match[2] or match[3] or ""
        for match in _DIRECTIVE.finditer(headers.get("cache-control", ""))
    }
    if "no-store" in said:
        return Freshness(may_be_kept=False, seconds=0.0)
    if "no-cache" in said:
        return Freshness(may_be_kept=True, seconds=0.0)
    if "max-age" not in said:
        return Freshness(may_be_kept=True, seconds=None)
    left = _seconds(said["max-age"]) - _seconds(headers.get("age", "0"))
    return Freshness(may_be_kept=True, seconds=max(left, 0.0))


def _seconds(text: str) -> float:
    text = text.strip()
    return min(float(text), LONGEST_FRESHNESS) if text.isascii() and text.isdigit() else 0.0
