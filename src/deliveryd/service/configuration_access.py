"""What a client may do to fetch entity configurations: hosts, sizes, cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from deliveryd.http.client import HttpClient
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.service.host_rules import OWN_HOST, HostRules
from deliveryd.service.hosts import LookUp, NameServers

LARGEST_CONFIGURATION = 1 << 20
PAGE_KEPT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ConfigurationAccess:
    """Fetching of entity configurations: allowed hosts, size limit and cache.

    `elsewhere` calls hosts other than the service's own (None: not allowed); it must not send a client
    certificate, and has its own size limit. `max_size` limits the answers of the service's own host, in
    bytes. `ttl` is the lifetime of a copy in seconds, if its host sets none. `look_up` resolves other hosts;
    None: a proxy resolves and checks them. The client closes all of these.
    """

    rules: HostRules = OWN_HOST
    elsewhere: HttpClient | None = None
    cache: DiskCache | None = None
    ttl: float = PAGE_KEPT_SECONDS
    max_size: int = LARGEST_CONFIGURATION
    look_up: LookUp | None = field(default_factory=NameServers)
