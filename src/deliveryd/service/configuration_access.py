"""What a client may do to fetch entity configurations: the operator's rules for hosts, sizes, cache.

The configuration's models use it, so it loads little.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from deliveryd.http.target import target_of
from deliveryd.network.public import Network, literal_address

if TYPE_CHECKING:
    from deliveryd.http.client import HttpClient
    from deliveryd.runtime.disk_cache import DiskCache

LookUp = Callable[[str, int], Awaitable[Sequence[str]]]

_NAME = re.compile(r"[a-z0-9._-]+")


class Host(NamedTuple):
    """A host on the list; without a port, the default port of the scheme."""

    name: str
    port: int | None


def parse_host(text: str) -> Host:
    """Parse "config.example.com", "config.example.com:8443" or "[2001:db8::7]". Raises ValueError."""
    if "/" in text or "?" in text or "#" in text or "://" in text:
        raise ValueError('expected a host such as "config.example.com" or "config.example.com:8443"')
    target = target_of(f"https://{text}")
    if literal_address(target.host) is None and not _NAME.fullmatch(target.host):
        raise ValueError(f"not the name of a host: {text[:80]!a}")
    _, colon, port = text.rpartition(":")
    return Host(
        same_host(target.host), target.port if colon and port.isdecimal() and "]" not in port else None
    )


def parse_network(text: str) -> Network:
    """Parse "10.20.0.0/16" or "fd00::/8". Raises ValueError."""
    return ipaddress.ip_network(text)


@dataclass(frozen=True, slots=True)
class HostRules:
    """The operator's rules; `hosts` None: only the service's own host.

    `networks` are private networks that names may resolve to; `allow_http`: whether plain http is allowed.
    """

    hosts: Sequence[Host] | None = None
    networks: Sequence[Network] = ()
    allow_http: bool = False


OWN_HOST = HostRules()
"""Only the service's own host."""


def same_host(name: str) -> str:
    """Return the canonical spelling of a host."""
    literal = literal_address(name)
    return str(literal) if literal is not None else name.lower()


LARGEST_CONFIGURATION = 1 << 20
PAGE_KEPT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ConfigurationAccess:
    """Fetching of entity configurations: allowed hosts, size limit and cache.

    `elsewhere` calls hosts other than the service's own (None: not allowed); it must not send a client
    certificate, and has its own size limit. `max_size` limits the answers of the service's own host, in
    bytes. `ttl` is the lifetime of a copy in seconds, if its host sets none. `look_up` resolves other hosts,
    None: with the system's resolver; `proxy_resolves`: a proxy does so instead. The client closes all of
    these.
    """

    rules: HostRules = OWN_HOST
    elsewhere: HttpClient | None = None
    cache: DiskCache | None = None
    ttl: float = PAGE_KEPT_SECONDS
    max_size: int = LARGEST_CONFIGURATION
    look_up: LookUp | None = None
    proxy_resolves: bool = False
