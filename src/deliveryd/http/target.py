"""Parses the address of a request: the plain form of almost all, or any by the library for that."""

from __future__ import annotations

import re
from functools import lru_cache

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


_LONGEST = 2000
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = rf"(?:[a-z0-9-]+\.)*[a-z][a-z0-9-]*|{_BYTE}(?:\.{_BYTE}){{3}}"
_PORT = r"[1-9][0-9]{0,4}"
_PATH = r"(?:/(?!\.)[A-Za-z0-9._~-]*)+(?:\?[A-Za-z0-9._~/=&-]*)?"
_PLAIN = re.compile(rf"(https?)://({_HOST})(?::({_PORT}))?({_PATH})?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def plain_target(url: str) -> Target | None:
    """Parse an address that needs no normalization: lower case, no escapes, no dot segments.

    Returns None for any other text.
    """
    match = _PLAIN.fullmatch(url) if len(url) <= _LONGEST else None
    if match is None or "xn--" in match[2]:
        return None
    scheme, host, given, path = match.groups()
    default = _DEFAULT_PORTS[scheme]
    port = int(given) if given else default
    if port > 65535:
        return None
    authority = host if port == default else f"{host}:{port}"
    return Target(scheme, host, port, authority, (path or "/").encode("ascii"))
