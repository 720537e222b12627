"""Numeric addresses of hosts."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import NamedTuple


class Address(NamedTuple):
    """A resolved address: the numeric host, and the other parts of an IPv6 socket address."""

    family: int
    host: str
    flow: int = 0
    scope: int = 0

    def at(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """Return the address in the form that sockets of its family take."""
        if self.family == socket.AF_INET6:
            return self.host, port, self.flow, self.scope
        return self.host, port


def numeric(host: str) -> Address | None:
    """Return `host` as an address if it is numeric, else None."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return Address(family, host)
    return None
