"""Detects secrets that would be sent over the network in plain text, and words the error."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from deliveryd.network.address import numeric

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
