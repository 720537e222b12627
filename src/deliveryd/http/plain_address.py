"""Parses the plain form of almost all addresses, without the library for all forms."""

from __future__ import annotations

import re

from deliveryd.http.wire import Target

_LONGEST = 2000
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = rf"(?:[a-z0-9-]+\.)*[a-z][a-z0-9-]*|{_BYTE}(?:\.{_BYTE}){{3}}"
_PORT = r"[1-9][0-9]{0,4}"
_PATH = r"(?:/(?!\.)[A-Za-z0-9._~-]*)+(?:\?[A-Za-z0-9._~/=&-]*)?"
_PLAIN = re.compile(rf"(https?)://({_HOST})(?::({_PORT}))?({_PATH})?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def plain_target(url: str) -> Target | None:
    """Parse an address that needs no normalization: lower case, no escapes, no dot segments.

    Returns None for any other text.
    """
    match = _PLAIN.fullmatch(url) if len(url) <= _LONGEST else None
    if match is None or "xn--" in match[2]:
        return None
    scheme, host, given, path = match.groups()
    default = _DEFAULT_PORTS[scheme]
    port = int(given) if given else default
    if port > 65535:
        return None
    authority = host if port == default else f"{host}:{port}"
    return Target(scheme, host, port, authority, (path or "/").encode("ascii"))
