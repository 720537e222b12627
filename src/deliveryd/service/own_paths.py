"""Which paths can't be a configuration's: those of the service's own interface, however they are spelled.

A `configUrl` comes from outside. One that says `/queue?take=100` would take messages from the queue with the
service's credentials, and one that says `/customers/18/all` would read another customer's data.

Servers differ in how they read a path: some decode it twice, drop `;parameters`, merge slashes, ignore case
or a suffix such as `.json`. So a path is compared in the form that the most lenient of them would see, and
one that two servers could read differently is refused whatever it means.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from deliveryd.errors import ServiceRefused
from deliveryd.http.wire import Target
from deliveryd.service.hosts import REFUSED

OWN = frozenset({"queue", "events", "settings", "customers"})
"""What the service's own paths begin with below its base address (interface 4)."""

_URL = re.compile(r"[A-Za-z]+://[^/?#\\]+([^?#]*)(?:\?[^#]*)?(?:#.*)?", re.DOTALL)
_PLAIN = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")
_AMBIGUOUS = re.compile(rb"[^ -~]|[/\\%;?#.]")
"""What an escape must not stand for: it would be read differently once it is decoded."""

_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_WORD = re.compile(r"[a-z0-9_-]+")
_CALL = re.compile(r"(?:.*/)?(?:queue|events|settings/-?\d+|customers/-?\d+/all)")
"""How a call of the interface ends, whatever it stands below."""


class OwnPaths:
    """The paths of the service at `base`.

    They are refused on every host, since any of them may lead to the service by another name, and below each
    folder of the base address, since a gateway may take some of them away.
    """

    def __init__(self, base: Target) -> None:
        self._base = [segment for segment in _segments(base.path.decode("ascii")) if segment]

    def check(self, url: str, target: Target) -> None:
        """Raise ServiceRefused, with the reason, for an address that can't be a configuration's.

        `target` is what `url` leads to: a path that changed on the way wasn't written plainly.
        """
        match = _URL.fullmatch(url)
        path = match[1] if match is not None else ""
        if match is None or _is_odd(path) or target.path.partition(b"?")[0] != (path or "/").encode("ascii"):
            reason = "it isn't written plainly, and servers may read it in different ways"
            raise ServiceRefused(f"the path of the address is refused: {reason}", REFUSED)
        if self._is_own(_segments(path)):
            reason = "it belongs to the service's own interface, so it is no configuration's"
            raise ServiceRefused(f"the path of the address is refused: {reason}", REFUSED)

    def _is_own(self, segments: Sequence[str]) -> bool:
        words = [_word(segment) for segment in segments]
        below = (at for at in range(len(self._base) + 1) if list(segments[:at]) == self._base[:at])
        is_call = _CALL.fullmatch("/".join(words).rstrip("/")) is not None
        return is_call or any(word in OWN for at in below for word in words[at : at + 1])


def _is_odd(path: str) -> bool:
    """Whether servers could read a path differently."""
    if not _PLAIN.fullmatch(path):
        return True
    if any(_AMBIGUOUS.search(unquote_to_bytes(escapes)) for escapes in _ESCAPES.findall(path)):
        return True
    segments = _segments(path.removesuffix("/"))
    return path not in ("", "/") and not all(segments)


def _segments(path: str) -> Sequence[str]:
    """The segments in the form to compare: without parameters, decoded, without dots and blanks around them.

    So a segment of dots is empty, as the one behind a slash at the end is.
    """
    named = (segment.partition(";")[0] for segment in path.split("/")[1:])
    return [unquote_to_bytes(name).decode("latin-1").strip(" .").lower() for name in named]


def _word(segment: str) -> str:
    """What a segment begins with, up to a suffix such as `.json` or `:take`."""
    found = _WORD.search(segment)
    return found[0] if found is not None else ""
