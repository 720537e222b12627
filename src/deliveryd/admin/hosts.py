"""Checks where requests come from, so that web pages of other sites can neither read this server nor load it.

A page can reach a server in its reader's network by resolving its own name to the server's address (DNS
rebinding); the `Host` header is then the page's name. So only addresses and configured names are accepted.
Without that, a page can't read the answers, but could send requests and hold the places of viewers: browsers
mark those with `Sec-Fetch-Site`. Links from other pages work.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_HOST = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::[0-9]*)?")
_CLOSE = {"Connection": "close"}


class HostGuard:
    """Answers requests for addresses, `localhost` and `names` with `app`, and refuses others."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = {"localhost", *map(str.lower, names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self._allows(hosts[0]):
            await _refusal(hosts)(scope, receive, send)
        elif _is_embedded(scope["headers"]):
            text = "requests of other sites' pages are refused\n"
            await PlainTextResponse(text, 403, _CLOSE)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _allows(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        if match["v6"] is not None:
            return _is_address(match["v6"], 6)
        return match["name"].lower().removesuffix(".") in self._names or _is_address(match["name"], 4)


def _is_embedded(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a page of another site makes the request, and no reader who follows a link."""
    marks = dict(headers)
    is_foreign = marks.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
    return is_foreign and marks.get(b"sec-fetch-dest") != b"document"


def _is_address(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _refusal(hosts: Collection[str]) -> PlainTextResponse:
    if len(hosts) != 1:
        return PlainTextResponse("a request must have one Host header\n", 400, _CLOSE)
    text = "unknown host name; use an address, or add the name to admin.allowed_hosts\n"
    return PlainTextResponse(text, 421, _CLOSE)
