"""Pauses that a provider's answer asks for: a header, a value of the body, or a fixed time."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from deliveryd.channels.http.answer_options import LONGEST_PAUSE, PauseOptions
from deliveryd.http.finder import Document, Finder, compile_finder
from deliveryd.http.responses import Now, retry_after, utc_now
from deliveryd.model import SECOND, parse_instant

PauseReader = Callable[[Document], float | None]
"""Returns the seconds to wait, at most an hour; None: the answer doesn't say."""

_Parse = Callable[[str, Now], float | None]
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_MILLISECONDS_FROM = 100_000_000_000  # in seconds, this would be the year 5138


def compile_pause(after: PauseOptions | float | None, now: Now = utc_now) -> PauseReader:
    """Compile the key `after` of a row; without it, or without a value in its place, Retry-After counts."""
    if after is None:
        return partial(_header, now)
    if isinstance(after, PauseOptions):
        return partial(_found, compile_finder(after.at), _UNITS[after.unit], now)
    return lambda _: after


def _header(now: Now, document: Document) -> float | None:
    return retry_after(document.headers.get("retry-after"), LONGEST_PAUSE, now)


def _found(finder: Finder, parse: _Parse, now: Now, document: Document) -> float | None:
    text = finder.find(document)
    seconds = None if text is None else parse(text.strip(), now)
    return _header(now, document) if seconds is None else min(max(seconds, 0.0), LONGEST_PAUSE)


def _seconds(text: str, now: Now) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else retry_after(text, LONGEST_PAUSE, now)


def _milliseconds(text: str, _now: Now) -> float | None:
    return float(text) / 1000 if _NUMBER.fullmatch(text) else None


def _instant(text: str, now: Now) -> float | None:
    """Read an instant: seconds or milliseconds since 1970, ISO 8601, or a date as headers have it."""
    if _NUMBER.fullmatch(text):
        number = float(text)
        return (number / 1000 if number >= _MILLISECONDS_FROM else number) - now().timestamp()
    try:
        return parse_instant(text) / SECOND - now().timestamp()
    except ValueError:
        return retry_after(text, LONGEST_PAUSE, now)


_UNITS: dict[str, _Parse] = {"s": _seconds, "ms": _milliseconds, "at": _instant}
