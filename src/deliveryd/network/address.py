"""Addresses of hosts, numeric ones and domains, and which data would leave this machine in plain text."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit


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


def ascii_domain(domain: str) -> str:
    """Return a domain as the DNS has it (IDNA 2008, UTS 46); one that has no such form in lower case."""
    domain = domain.removesuffix(".")
    if not domain.isascii():
        import idna  # noqa: PLC0415  # few domains need it

        with suppress(idna.IDNAError):
            return idna.encode(domain, uts46=True).decode("ascii")
    return domain.lower()


SECURE_ADDRESS = "give an https:// address"
"""The remedy if the address decides about encryption."""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by name or address, without a name look-up."""
    address = numeric(host.strip("[]"))
    if address is None:
        return host.lower().rstrip(".") == "localhost"
    if address.family == socket.AF_INET:
        return address.host.startswith("127.")
    return socket.inet_pton(socket.AF_INET6, address.host) == socket.inet_pton(socket.AF_INET6, "::1")


def goes_out_plain(url: str, proxy: str | None = None) -> bool:
    """Whether data to an http address leaves this machine unencrypted, or is readable by a proxy."""
    address = urlsplit(url)
    if address.scheme.lower() != "http":
        return False
    is_here = is_loopback(address.hostname or "")
    return not is_here or (proxy is not None and not is_loopback(urlsplit(proxy).hostname or ""))


def plain_text_problem(what: str, host: str, remedy: str) -> str:
    """Return the error for a secret that would be sent in plain text, with the remedy."""
    return (
        f"{what} would be sent to {host} unencrypted: {remedy},"
        " or set allow_plain_text = true in this table if the network is trusted"
    )
