"""Ports for servers that a test starts."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_PORTS = (10_000, 32_000)


def free_port() -> int:
    """A port that nobody gets by chance, as one from the range of outgoing connections might be."""
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with socket.socket() as tried, suppress(OSError):
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
            return port
