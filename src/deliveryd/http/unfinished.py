"""The connections of a server on which it waits for the client: how many there may be, and which one goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

MOST = 200
"""Connections that wait for their client at a time."""

MOST_OF_A_PEER = 100
"""Connections of one peer that wait for the rest of a request."""

_FACTOR = 2
"""By how much those that have sent something unread may exceed a bound."""


class Connection(Protocol):
    """A connection, as far as it matters here."""

    def has_unread(self) -> bool:
        """Whether the client sent something that wasn't read yet."""

    def part(self) -> None:
        """Close the connection at once."""


class Unfinished:
    """Connections that wait for their client, the longest waiting first.

    When there are too many, of one peer or in all, the one that has waited for longest is closed. So whoever
    holds requests open shuts out nobody: others have until as many younger ones have come. A request that has
    come whole isn't among them, nor is one chosen whose rest has arrived and only wasn't read yet.
    """

    def __init__(self) -> None:
        self._all: dict[Connection, str | None] = {}
        self._of_peer: dict[str, dict[Connection, None]] = {}

    def enter(self, connection: Connection, peer: str | None) -> None:
        """From now on the client of this connection is waited for; None: it counts as nobody's."""
        if connection in self._all:
            self.leave(connection)
        self._all[connection] = None
        if peer is not None:
            self.belongs(connection, peer)
        if len(self._all) > MOST:
            _part_from_oldest(self._all, MOST, connection)

    def belongs(self, connection: Connection, peer: str | None) -> None:
        """One that is waited for turned out to be this peer's; it keeps its place among all."""
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
            _part_from_oldest(others, MOST_OF_A_PEER, connection)

    def leave(self, connection: Connection) -> None:
        """The client of this connection isn't waited for any more."""
        peer = self._all.pop(connection, None)
        if peer is not None:
            self._disown(connection, peer)

    def _disown(self, connection: Connection, peer: str) -> None:
        others = self._of_peer[peer]
        del others[connection]
        if not others:
            del self._of_peer[peer]


def _part_from_oldest(among: Mapping[Connection, object], bound: int, newest: Connection) -> None:
    oldest = next((each for each in among if each is not newest and not each.has_unread()), None)
    if oldest is None and len(among) > _FACTOR * bound:
        oldest = next(iter(among))
    if oldest is not None:
        oldest.part()
