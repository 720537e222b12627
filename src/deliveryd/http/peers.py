"""The peer of a connection, or behind a proxy: the key for limits per peer, such as of wrong tries."""

from __future__ import annotations

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Sequence

import anyio

MOST_UNFINISHED = 200
"""Most connections of a server that wait for their client."""

PeerAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_WITH_PORT = re.compile(r"\[([^\]]+)\](?::[0-9]+)?|([0-9.]+):[0-9]+")


class Peers:
    """Identifies peers. On connections of a trusted proxy, `X-Forwarded-For` names the peer.

    `trusted` are addresses and networks of proxies. `Forwarded` (RFC 7239) isn't read: a proxy that writes
    one of the two headers forwards the other from its client unchanged.
    """

    def __init__(self, trusted: Sequence[str] = ()) -> None:
        self._trusted = [ipaddress.ip_network(network) for network in trusted]

    def connected(self, host: str) -> str | None:
        """Return the peer of a connection; None for a trusted proxy, which serves many peers."""
        return self._outside(_address(host))

    def forwarded(self, values: Sequence[bytes]) -> str | None:
        """Return the peer named by these headers: the rightmost address that isn't a trusted proxy's.

        None if all are trusted, or an address on the way can't be parsed.
        """
        named = b",".join(values).decode("latin-1").split(",")
        for text in reversed(named):
            address = _address(text.strip())
            if address is None or (peer := self._outside(address)) is not None:
                return peer if address is not None else None
        return None

    def _outside(self, address: PeerAddress | None) -> str | None:
        if address is None or any(address in network for network in self._trusted):
            return None
        if address.version == 6:  # one host can use all 2**64 addresses of its network
            return str(ipaddress.ip_network((address, 64), strict=False))
        return str(address)


EVERYBODY = Peers()
"""Identifies peers where no proxy is trusted."""


def _address(text: str) -> PeerAddress | None:
    if (match := _WITH_PORT.fullmatch(text)) is not None:
        text = match[1] or match[2]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


MOST_WRONG = 10
PERIOD = 60.0
"""Wrong tries that one peer may make, and the seconds after which they are forgotten."""

MOST_PEERS = 1000


class WrongTries:
    """The wrong tries that peers made lately, such as with a token.

    Only what is wrong is counted, and answered so: whoever has the right token is never shut out by others.
    """

    def __init__(self) -> None:
        self._tries: OrderedDict[str | None, tuple[int, float]] = OrderedDict()

    def add(self, peer: str | None) -> float:
        """Count one; return for how many seconds the peer has to wait: 0 unless it made too many."""
        now = anyio.current_time()
        count, until = self._tries.pop(peer, (0, 0.0))
        count = count + 1 if now < until else 1
        self._tries[peer] = (count, now + PERIOD)
        if len(self._tries) > MOST_PEERS:
            self._tries.popitem(last=False)
        return PERIOD if count > MOST_WRONG else 0.0
