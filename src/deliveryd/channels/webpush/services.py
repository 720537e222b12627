"""Which push services messages go to: a subscription comes from a browser, and may lead anywhere."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

import anyio

from deliveryd.channels.mapping import Unfit
from deliveryd.http.target import plain_target
from deliveryd.http.wire import Target
from deliveryd.network.public import Network, refusal
from deliveryd.network.resolver import Resolver

LONGEST_ENDPOINT = 2000
"""Characters of an endpoint."""

MOST_NAMES = 100
"""Names of push services whose addresses are remembered: those below `*.` come from browsers."""

ADDRESSES_TRIED = 4
"""Addresses of a push service that are tried."""

_HOST = re.compile(r"(?:[a-z0-9-]{1,63}\.)*[a-z][a-z0-9-]{0,62}")
_LONGEST_HOST = 253


class Allowed(NamedTuple):
    """An entry of the list: a host, or all below one, and the port."""

    written: str
    host: str
    port: int

    @property
    def is_open(self) -> bool:
        """Whether browsers choose the name."""
        return self.host.startswith("*.")

    def fits(self, target: Target) -> bool:
        """Whether the entry allows this host and port."""
        if target.port != self.port:
            return False
        return target.host.endswith(self.host[1:]) if self.is_open else target.host == self.host


def read_allowed(written: str) -> Allowed:
    """Read an entry such as "fcm.googleapis.com", "*.push.example.com" or "push.example.com:8443".

    Raises ValueError.
    """
    host, _, port = written.partition(":")
    if not _HOST.fullmatch(host.removeprefix("*.")) or (":" in written and not port.isdecimal()):
        raise ValueError('expected a host in lower case, such as "push.example.com" or "*.example.com"')
    return Allowed(written, host, int(port or 443))


class PushServices:
    """The push services that are allowed; `networks` are private ones that their names may lead to.

    A look-up takes `timeout` seconds at most.
    """

    def __init__(
        self, allowed: Sequence[str], networks: Sequence[Network], resolver: Resolver, timeout: float
    ) -> None:
        self.allowed = [read_allowed(each) for each in allowed]
        self._networks = networks
        self._resolver = resolver
        self._timeout = timeout
        self._names: set[str] = set()

    def find(self, endpoint: str) -> tuple[Target, Allowed]:
        """Return where messages for an endpoint go, and by which entry. Raises Unfit, without its text."""
        target = plain_target(endpoint) if len(endpoint) <= LONGEST_ENDPOINT else None
        if target is None:
            target = _odd_target(endpoint)
        if target.scheme != "https":
            raise Unfit("the subscription's endpoint must be https")
        if not _HOST.fullmatch(target.host) or len(target.host) > _LONGEST_HOST:
            raise Unfit("the subscription's endpoint must name a host")
        entry = next((each for each in self.allowed if each.fits(target)), None)
        if entry is None:
            raise Unfit("the subscription's push service isn't in allowed_hosts")
        return target, entry

    async def addresses(self, target: Target) -> Sequence[str]:
        """Return the addresses to connect to. Raises Unfit if one isn't public, OSError and TimeoutError."""
        if target.host not in self._names:
            if len(self._names) >= MOST_NAMES:
                self._names.clear()
                self._resolver = Resolver()
            self._names.add(target.host)
        return await self._look_up(target.host)

    async def _look_up(self, name: str) -> Sequence[str]:
        with anyio.fail_after(self._timeout):
            found = [each.host for each in await self._resolver.look_up(name)]
        for text in found:
            if (why := refusal(ipaddress.ip_address(text), self._networks)) is not None:
                raise Unfit(f"the push service's name leads to {why}")
        return list(dict.fromkeys(found))[:ADDRESSES_TRIED]

    async def problem(self) -> str | None:
        """Look up those that are written out; None: one of them has an address, or there is none."""
        names = [each.host for each in self.allowed if not each.is_open]
        for name in names:
            try:
                await self._look_up(name)
            except (OSError, TimeoutError, Unfit):
                continue
            return None
        return f"no push service has a public address: {', '.join(names)}" if names else None


_ODD = re.compile(r"(https?)://([^/?#@\s\\]+?)(?::([0-9]{1,5}))?(/[!-~]*)?")


def _odd_target(endpoint: str) -> Target:
    """Parse an address with characters in its path that `plain_target` leaves alone. Raises Unfit."""
    match = _ODD.fullmatch(endpoint) if len(endpoint) <= LONGEST_ENDPOINT else None
    if match is None or "#" in endpoint or "\\" in endpoint:
        raise Unfit("the subscription's endpoint isn't an address")
    scheme, host, given, path = match.groups()
    port = int(given) if given else 443 if scheme == "https" else 80
    authority = host if given is None else f"{host}:{port}"
    return Target(scheme, host, port, authority, (path or "/").encode("ascii"))
