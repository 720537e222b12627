"""Recognises a page where data is due: a portal, a proxy or a hosting default answers in a server's place."""

from __future__ import annotations

import re

_SEARCHED = 4096
_PAGE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>|<!--.*?-->|\s)*"
    rb"<(?:!doctype\s+html|html|head|body|title|meta|script|style|link|center|div|p|h[1-6]|br|hr|table|img|font)"
    rb"[\s/>]",
    re.IGNORECASE | re.DOTALL,
)


def is_page(body: bytes) -> bool:
    """Whether a body is HTML, whatever its Content-Type says: many servers call everything HTML."""
    return body[:1] not in b'{["' and _PAGE.match(body[:_SEARCHED]) is not None
