"""Secrets that would cross the network in plain text: who is far away, and what is said about it."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from deliveryd.network.resolver import numeric

SECURE_ADDRESS = "give an https:// address"
"""What to do where an address decides about encryption."""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or address alone; no name is looked up."""
    address = numeric(host.strip("[]"))
    if address is None:
        return host.lower().rstrip(".") == "localhost"
    if address.family == socket.AF_INET:
        return address.host.startswith("127.")
    return socket.inet_pton(socket.AF_INET6, address.host) == socket.inet_pton(socket.AF_INET6, "::1")


def goes_out_plain(url: str, proxy: str | None = None) -> bool:
    """Whether what is sent to an http address leaves this machine unencrypted, or for a proxy to read."""
    address = urlsplit(url)
    if address.scheme.lower() != "http":
        return False
    is_here = is_loopback(address.hostname or "")
    return not is_here or (proxy is not None and not is_loopback(urlsplit(proxy).hostname or ""))


def plain_text_problem(what: str, host: str, remedy: str) -> str:
    """That a secret would be sent in plain text, and what to do."""
    return (
        f"{what} would cross the network to {host} unencrypted: {remedy},"
        " or set allow_plain_text = true in this table where the network is trusted"
    )
