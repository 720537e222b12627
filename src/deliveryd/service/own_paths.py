"""Refuses the paths of the service's own interface as configurations, however they are spelled.

A `configUrl` comes from outside. `/queue?take=100` would take messages from the queue with the service's
credentials, and `/customers/18/all` would read another customer's data.

Servers interpret paths differently: some decode them twice, drop `;parameters`, merge slashes, ignore case or
a suffix such as `.json`. So paths are compared as the most lenient server would read them, and ambiguous
paths are always refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from deliveryd.errors import ServiceRefused
from deliveryd.http.wire import Target
from deliveryd.service.hosts import REFUSED

OWN = frozenset({"queue", "events", "settings", "customers"})
"""The first segments of the service's own paths below its base address (interface 4)."""

_URL = re.compile(r"[A-Za-z]+://[^/?#\\]+([^?#]*)(?:\?[^#]*)?(?:#.*)?", re.DOTALL)
_PLAIN = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")
_AMBIGUOUS = re.compile(rb"[^ -~]|[/\\%;?#.]")
"""Characters that must not be percent-encoded: decoding would change the meaning."""

_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_WORD = re.compile(r"[a-z0-9_-]+")
_CALL = re.compile(r"(?:.*/)?(?:queue|events|settings/-?\d+|customers/-?\d+/all)")
"""The ends of the interface's paths, below any prefix."""


class OwnPaths:
    """The paths of the service at `base`.

    They are refused on every host, since any host may be another name of the service, and below each folder
    of the base address, since a gateway may strip some of them.
    """

    def __init__(self, base: Target) -> None:
        self._base = [segment for segment in _segments(base.path.decode("ascii")) if segment]

    def check(self, url: str, target: Target) -> None:
        """Raise ServiceRefused, with the reason, for an address that isn't allowed.

        `target` is the parsed `url`: a path that differs wasn't in its plain form.
        """
        match = _URL.fullmatch(url)
        path = match[1] if match is not None else ""
        if match is None or _is_odd(path) or target.path.partition(b"?")[0] != (path or "/").encode("ascii"):
            reason = "it is ambiguous: servers may interpret it in different ways"
            raise ServiceRefused(f"the path of the address is refused: {reason}", REFUSED)
        if self._is_own(_segments(path)):
            reason = "it belongs to the service's own interface"
            raise ServiceRefused(f"the path of the address is refused: {reason}", REFUSED)

    def _is_own(self, segments: Sequence[str]) -> bool:
        words = [_word(segment) for segment in segments]
        below = (at for at in range(len(self._base) + 1) if list(segments[:at]) == self._base[:at])
        is_call = _CALL.fullmatch("/".join(words).rstrip("/")) is not None
        return is_call or any(word in OWN for at in below for word in words[at : at + 1])


def _is_odd(path: str) -> bool:
    """Whether servers could interpret a path differently."""
    if not _PLAIN.fullmatch(path):
        return True
    if any(_AMBIGUOUS.search(unquote_to_bytes(escapes)) for escapes in _ESCAPES.findall(path)):
        return True
    segments = _segments(path.removesuffix("/"))
    return path not in ("", "/") and not all(segments)


def _segments(path: str) -> Sequence[str]:
    """Return the segments for comparison: without parameters, decoded, stripped of dots and blanks.

    So a segment of dots is empty, like the one after a trailing slash.
    """
    named = (segment.partition(";")[0] for segment in path.split("/")[1:])
    return [unquote_to_bytes(name).decode("latin-1").strip(" .").lower() for name in named]


def _word(segment: str) -> str:
    """Return a segment without a suffix such as `.json` or `:take`."""
    found = _WORD.search(segment)
    return found[0] if found is not None else ""
