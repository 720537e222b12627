"""The addresses that entity configurations may be fetched from, since they come from outside (4.5).

A host must be on the list, and its name must not resolve into a network that isn't allowed: otherwise whoever
writes a `configUrl`, or controls its name, could make this machine send requests into its own network.

The paths of the service's own interface are refused, however they are spelled: `/queue?take=100` would take
messages from the queue with the service's credentials, and `/customers/18/all` would read another customer's
data. Servers interpret paths differently: some decode them twice, drop `;parameters`, merge slashes, ignore
case or a suffix such as `.json`. So paths are compared as the most lenient server would read them, and
ambiguous paths are always refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

import anyio

from deliveryd.errors import ServiceRefused, ServiceUnavailable
from deliveryd.http.wire import Target
from deliveryd.network.public import METADATA, literal_address, reached, refusal
from deliveryd.network.resolver import Resolver
from deliveryd.service.configuration_access import HostRules, LookUp, same_host

REFUSED = 0
"""The status of a refusal before any request."""

LOOK_UP_SECONDS = 10.0
MOST_ADDRESSES = 4
SCHEME_PORTS = {"https": 443, "http": 80}


class NameServers:
    """Resolves names with the system's resolver, each separately, so that a slow one delays no other."""

    def __init__(self) -> None:
        self._resolver = Resolver()

    async def __call__(self, name: str, _port: int) -> Sequence[str]:
        """Return the addresses of a host without duplicates. Raises ServiceUnavailable."""
        try:
            with anyio.fail_after(LOOK_UP_SECONDS):
                found = await self._resolver.look_up(name)
        except TimeoutError:
            raise ServiceUnavailable(f"no address of {name} within {LOOK_UP_SECONDS:g} s") from None
        except OSError:
            raise ServiceUnavailable(f"{name} has no address") from None
        return list(dict.fromkeys(address.host for address in found))


class AllowedHosts:
    """Applies the rules. The service's own host is that of `base`: scheme, name and port.

    `look_up` None: a proxy resolves names.
    """

    def __init__(self, base: Target, rules: HostRules, look_up: LookUp | None) -> None:
        self._own = base[:3]
        self._rules = rules
        self._look_up = look_up

    def is_own(self, target: Target) -> bool:
        """Whether this is the service's own host."""
        return target[:3] == self._own

    def check(self, target: Target) -> None:
        """Raise ServiceRefused, with the reason, unless the host is on the list and the scheme is allowed."""
        own = self.is_own(target)
        if not (own if self._rules.hosts is None else self._is_listed(target)):
            raise ServiceRefused(f"{target.authority} isn't a host that configurations come from", REFUSED)
        if target.scheme != "https" and not own and not self._rules.allow_http:
            raise ServiceRefused(
                f"{target.authority} would be called without TLS, which isn't allowed", REFUSED
            )

    async def addresses(self, target: Target) -> Sequence[str | None]:
        """Return the addresses to connect to, resolved once; None: a proxy resolves the name.

        Raises ServiceRefused if one of them is in a network that isn't allowed, and ServiceUnavailable if
        there is none.
        """
        found: Sequence[str]
        if (literal := literal_address(target.host)) is not None:
            if not METADATA & {literal, reached(literal)}:
                return [str(literal)]  # it stands on the list itself
            found = [target.host]
        elif self._look_up is None:
            return [None]
        else:
            found = (await self._look_up(target.host, target.port))[:MOST_ADDRESSES]
        for text in found:
            if (why := refusal(ipaddress.ip_address(text), self._rules.networks)) is not None:
                raise ServiceRefused(f"{target.host} leads to {text}, {why}", REFUSED)
        return found

    def _is_listed(self, target: Target) -> bool:
        name, port = same_host(target.host), target.port
        return any(
            host.name == name
            and port == (host.port if host.port is not None else SCHEME_PORTS[target.scheme])
            for host in self._rules.hosts or ()
        )


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
