"""Parses the address of a request."""

from __future__ import annotations

from functools import lru_cache

from deliveryd.http.plain_address import plain_target
from deliveryd.http.wire import Target


@lru_cache(maxsize=4096)
def target_of(url: str) -> Target:
    """Parse an absolute http or https address. Raises ValueError for anything else."""
    return plain_target(url) or _any_target(url)


def _any_target(url: str) -> Target:
    import httpx  # noqa: PLC0415  # slow to load, and most workers only use plain addresses

    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"not an address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("an address must start with http:// or https:// and a host")
    if parsed.userinfo:
        raise ValueError("an address must not contain a user name or password")
    default = 443 if parsed.scheme == "https" else 80
    port = default if parsed.port is None else parsed.port
    if not 0 < port < 65536:
        raise ValueError("the port of an address must be between 1 and 65535")
    host, authority = parsed.raw_host.decode("ascii"), parsed.netloc.decode("ascii")
    return Target(parsed.scheme, host, port, authority.removesuffix(f":{default}"), parsed.raw_path)
