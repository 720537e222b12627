"""The addresses that entity configurations may be fetched from, since they come from outside (4.5).

A host must be on the list, and its name must not resolve into a network that isn't allowed: otherwise whoever
writes a `configUrl`, or controls its name, could make this machine send requests into its own network. Which
addresses are public is in a table of our own, since `ipaddress` differs between versions: IANA's
special-purpose registries and other ranges outside the public internet. Of IPv6, only 2000::/3 is public.

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
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import unquote_to_bytes

import anyio

from deliveryd.errors import ServiceRefused, ServiceUnavailable
from deliveryd.http.wire import Target
from deliveryd.network.resolver import Resolver
from deliveryd.service.configuration_access import HostRules, IpAddress, LookUp, literal_address, same_host

METADATA: frozenset[IpAddress] = frozenset(
    [
        IPv4Address("169.254.169.254"),  # AWS, Azure, Google, Oracle, DigitalOcean, OpenStack and others
        IPv4Address("169.254.169.123"),  # AWS: time
        IPv4Address("169.254.169.253"),  # AWS: names
        IPv4Address("169.254.170.2"),  # AWS ECS: credentials of a task
        IPv4Address("169.254.170.23"),  # AWS EKS: credentials of a pod
        IPv4Address("169.254.0.23"),  # Tencent
        IPv4Address("169.254.42.42"),  # Scaleway
        IPv4Address("100.100.100.200"),  # Alibaba
        IPv4Address("192.0.0.192"),  # Oracle, classic
        IPv4Address("168.63.129.16"),  # Azure: the host of a virtual machine, at a public address
        IPv6Address("fd00:ec2::254"),  # AWS
        IPv6Address("fd00:ec2::253"),
        IPv6Address("fd00:ec2::123"),
        IPv6Address("fd00:ec2::23"),
        IPv6Address("fd20:ce::254"),  # Google
        IPv6Address("fd00:c1::a9fe:a9fe"),  # Oracle
        IPv6Address("fd00:a9fe:a9fe::1"),  # Akamai
        IPv6Address("fd00:100::100:200"),  # Alibaba
        IPv6Address("fd00:42::42"),  # Scaleway
        IPv6Address("fe80::a9fe:a9fe"),  # OpenStack
    ]
)
"""Addresses where clouds give credentials to their machines."""

_IPV4: Sequence[tuple[IPv4Network, str]] = [
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "private"),  # this network; 0.0.0.0 is this machine
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "private"),  # shared by a carrier's customers
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "metadata"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "private"),  # IETF protocol assignments
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "private"),  # 6to4 relays
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "private"),  # benchmarks
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "private"),  # reserved, and broadcast
    )
]
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_IPV6: Sequence[tuple[IPv6Network, str]] = [
    (IPv6Network(network), kind)
    for network, kind in (
        ("::1/128", "loopback"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "private"),  # IETF protocol assignments: Teredo, benchmarks, ORCHID
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "private"),  # 6to4: reaches an IPv4 address through unknown relays
        ("3ffe::/16", "private"),  # 6bone, given back
        ("3fff::/20", "documentation"),
    )
]
_MAPPED = IPv6Network("::ffff:0:0/96")
_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64 (RFC 6052)


def reached(address: IpAddress) -> IpAddress:
    """Return the IPv4 address behind an IPv6 one, if it has one for certain; else the address itself.

    The scope is removed: the address is the same on every interface.
    """
    if isinstance(address, IPv4Address):
        return address
    if address in _MAPPED or address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return IPv6Address(int(address))


def kind_of(address: IpAddress) -> str | None:
    """Return the kind of a non-public address; None for a public one."""
    if isinstance(address, IPv4Address):
        return next((kind for network, kind in _IPV4 if address in network), None)
    kind = next((kind for network, kind in _IPV6 if address in network), None)
    return kind if kind is not None or address in _PUBLIC_IPV6 else "private"


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
