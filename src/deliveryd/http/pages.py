"""Recognises a page where data is due: a portal, a proxy or a hosting default answers in a server's place."""

from __future__ import annotations

import re
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
    """Whether a body is HTML, whatever its Content-Type is: many servers call everything HTML."""
    return body[:1] not in b'{["' and _page().match(body[:_SEARCHED]) is not None
