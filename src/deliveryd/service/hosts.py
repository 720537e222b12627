"""The hosts that entity configurations may be fetched from, since their addresses come from outside (4.5).

A host must be on the list, and its name must not resolve into a network that isn't allowed: otherwise whoever
writes a `configUrl`, or controls its name, could make this machine send requests into its own network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence

import anyio

from deliveryd.errors import ServiceRefused, ServiceUnavailable
from deliveryd.http.wire import Target
from deliveryd.network.resolver import Resolver
from deliveryd.service.address_kinds import METADATA, IpAddress, kind_of, reached
from deliveryd.service.host_rules import HostRules, literal_address, same_host

LookUp = Callable[[str, int], Awaitable[Sequence[str]]]

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
            if (refusal := self._refusal(ipaddress.ip_address(text))) is not None:
                raise ServiceRefused(f"{target.host} leads to {text}, {refusal}", REFUSED)
        return found

    def _is_listed(self, target: Target) -> bool:
        name, port = same_host(target.host), target.port
        return any(
            host.name == name
            and port == (host.port if host.port is not None else SCHEME_PORTS[target.scheme])
            for host in self._rules.hosts or ()
        )

    def _refusal(self, address: IpAddress) -> str | None:
        """Return why an address is refused: it is neither public nor in an allowed network."""
        at = reached(address)
        if METADATA & {address, at}:
            return f"a {kind_of(at)} address of a cloud's credentials service, which is always refused"
        if (kind := kind_of(at)) is None:
            return None
        if any(each in network for network in self._rules.networks for each in (address, at)):
            return None
        return f"a {kind} address that isn't in an allowed network"
