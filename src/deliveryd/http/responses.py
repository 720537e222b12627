"""What any response may say: a page where data is due, a pause by `Retry-After`.

A portal, a proxy or a hosting default answers with a page in a server's place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache

_SEARCHED = 4096
_PAGE = (
    rb"(?:\xef\xbb\xbf)?\s*+(?:<!--|(?:\s++|<\?xml[^>]*+>|<!--.*?-->)*+"
    rb"<(?:!doctype\s+html|html|head|body|title|meta|base|link|script|noscript|style|frameset|iframe|form|center"
    rb"|main|header|nav|section|article|div|p|h[1-6]|br|hr|table|ul|ol|dl|pre|img|svg|font|span|a|b|i|u|em|strong)"
    rb"[\s/>])"
)
"""What the MIME Sniffing Standard (7.1) takes for HTML, and other elements that pages begin with."""


@cache
def _page() -> re.Pattern[bytes]:
    """Return the expression for the beginning of a page: few runs need it, and it is slow to compile."""
    return re.compile(_PAGE, re.IGNORECASE | re.DOTALL)


def is_page(body: bytes) -> bool:
    """Whether a body is HTML, whatever its Content-Type says: many servers call everything HTML."""
    return body[:1] not in b'{["' and _page().match(body[:_SEARCHED]) is not None


Now = Callable[[], datetime]
"""Returns the instant from which pauses count."""


def utc_now() -> datetime:
    """Return the time of the machine."""
    return datetime.now(UTC)


def retry_after(value: str | None, longest: float, now: Now = utc_now) -> float | None:
    """Parse `Retry-After`, in both of its forms (RFC 9110, 10.2.3).

    Returns the seconds from now, at most `longest`; None for a missing or invalid value.
    """
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
