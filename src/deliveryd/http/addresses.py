"""Addresses to listen on: parsing, binding, and their URLs."""

from __future__ import annotations

import errno
import re
import socket
from ipaddress import ip_address

from deliveryd.errors import AddressInUse, ConfigError

_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:\s]+)):(?P<port>[0-9]{1,20})")

_BACKLOG = 128

_MAY_PASS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, socket.EAI_AGAIN})
"""Includes an address that this machine doesn't have: it may move between machines."""


def parse_listen(listen: str) -> tuple[str, int]:
    """Split `127.0.0.1:9470` or `[::1]:9470` into host and port. Raises ValueError."""
    match = _LISTEN.fullmatch(listen)
    if match is None:
        raise ValueError("expected HOST:PORT, for example 127.0.0.1:9470 or [::1]:9470")
    if int(match["port"]) > 65535:
        raise ValueError("the port must be between 0 and 65535")
    return match["v6"] or match["host"], int(match["port"])


def collide(one: str, other: str) -> bool:
    """Whether two servers can't have these addresses at the same time, as far as that shows without look-ups.

    0.0.0.0 and [::] take the port of all addresses of their family.
    """
    (host, port), (other_host, other_port) = parse_listen(one), parse_listen(other)
    if port != other_port or port == 0:
        return False
    try:
        hosts = ip_address(host), ip_address(other_host)
    except ValueError:  # a name
        return host.lower() == other_host.lower()
    is_any = any(each.is_unspecified for each in hosts) and hosts[0].version == hosts[1].version
    return is_any or hosts[0] == hosts[1]


def bind(key: str, listen: str) -> socket.socket:
    """Bind and listen exclusively; port 0 takes any free port.

    `key` is the configuration key of the address, named in errors. Raises AddressInUse if the address may
    become available later, otherwise ConfigError.
    """
    try:
        host, port = parse_listen(listen)
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (ValueError, OSError) as error:
        raise _refusal(key, listen, error) from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise _refusal(key, listen, error) from error
    return bound


def _refusal(key: str, listen: str, error: ValueError | OSError) -> AddressInUse | ConfigError:
    reason = error.strerror if isinstance(error, OSError) else error
    problem = f"{key}: can't listen on {listen!r}: {reason}"
    if isinstance(error, OSError) and error.errno in _MAY_PASS:
        return AddressInUse(problem)
    return ConfigError([problem])


def url_of(bound: socket.socket) -> str:
    """Return a bound socket's URL, `http://host:port`."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
