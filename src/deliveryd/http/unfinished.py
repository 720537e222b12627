"""Limits the connections on which a server waits for the client, by closing the oldest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

MOST = 200
"""Most connections that wait for their client."""

MOST_OF_A_PEER = 100
"""Most connections of one peer that wait for the rest of a request."""

_FACTOR = 2
"""By how many connections with unread data may exceed a limit."""


class Connection(Protocol):
    """The part of a connection used here."""

    def has_unread(self) -> bool:
        """Whether the client sent data that wasn't read yet."""

    def drop(self) -> None:
        """Close the connection at once."""


class Unfinished:
    """Connections that wait for their client, the longest waiting first.

    If there are too many, of one peer or in total, the one that has waited longest is closed. So a client
    that holds requests open can't block others, which last until that many newer ones have arrived. Complete
    requests aren't included, and one whose rest has arrived unread isn't closed.
    """

    def __init__(self) -> None:
        self._all: dict[Connection, str | None] = {}
        self._of_peer: dict[str, dict[Connection, None]] = {}

    def enter(self, connection: Connection, peer: str | None) -> None:
        """Add a connection whose client is waited for; `peer` None: not counted per peer."""
        if connection in self._all:
            self.leave(connection)
        self._all[connection] = None
        if peer is not None:
            self.assign(connection, peer)
        if len(self._all) > MOST:
            _drop_oldest(self._all, MOST, connection)

    def assign(self, connection: Connection, peer: str | None) -> None:
        """Assign a waiting connection to its peer; it keeps its place in the order."""
        if connection not in self._all:
            return
        if (before := self._all[connection]) is not None:
            self._disown(connection, before)
        self._all[connection] = peer
        if peer is None:
            return
        others = self._of_peer.setdefault(peer, {})
        others[connection] = None
        if len(others) > MOST_OF_A_PEER:
            _drop_oldest(others, MOST_OF_A_PEER, connection)

    def leave(self, connection: Connection) -> None:
        """Remove a connection whose client isn't waited for any more."""
        peer = self._all.pop(connection, None)
        if peer is not None:
            self._disown(connection, peer)

    def _disown(self, connection: Connection, peer: str) -> None:
        others = self._of_peer[peer]
        del others[connection]
        if not others:
            del self._of_peer[peer]


def _drop_oldest(among: Mapping[Connection, object], bound: int, newest: Connection) -> None:
    oldest = next((each for each in among if each is not newest and not each.has_unread()), None)
    if oldest is None and len(among) > _FACTOR * bound:
        oldest = next(iter(among))
    if oldest is not None:
        oldest.drop()
