"""Room for large requests: how much they may take together, and who has to leave if it isn't enough."""

from __future__ import annotations

import anyio

SMALL_BODY = 64 << 10
"""Bytes of a body that always have room: of as many requests as there may be connections."""

LARGE_BODIES = 8 << 20
"""Bytes that all bodies together may have beyond that, or as many as the largest request."""


class LargeBodies:
    """Room for what bodies have beyond `SMALL_BODY`.

    If it isn't enough, the one leaves that has been arriving for longest; and of a peer whose unfinished
    bodies take more than half of the room, its own. So a slow sender doesn't shut out others.
    """

    def __init__(self, largest: int) -> None:
        self._size = max(LARGE_BODIES, largest)
        self._share = max(self._size // 2, largest)
        self._taken = 0
        self._unfinished: dict[HeldRoom, None] = {}

    def enter(self, held: HeldRoom, more: int) -> None:
        """Give a body that arrives room for more bytes; others, or it, may have to leave for that."""
        self._unfinished[held] = None
        held.size += more
        self._taken += more
        own = [each for each in self._unfinished if each.peer == held.peer]
        if held.peer is not None and sum(each.size for each in own) > self._share:
            own[0].evict()
        while self._taken > self._size and self._unfinished:
            next(iter(self._unfinished)).evict()

    def finish(self, held: HeldRoom) -> None:
        """Let a body that has arrived stay until it leaves."""
        self._unfinished.pop(held, None)

    def leave(self, held: HeldRoom) -> None:
        """Take the room of a body back."""
        self._unfinished.pop(held, None)
        self._taken -= held.size
        held.size = 0


class HeldRoom:
    """What one request holds of the room; `scope` receives its body, and is cancelled if it has to leave."""

    __slots__ = ("_room", "is_evicted", "peer", "scope", "size")

    def __init__(self, room: LargeBodies, peer: str | None) -> None:
        self._room = room
        self.peer = peer
        self.scope = anyio.CancelScope()
        self.size = 0
        self.is_evicted = False

    def grow(self, length: int) -> bool:
        """Take room for a body of this length; whether it may stay."""
        if not self.is_evicted:
            self._room.enter(self, max(0, length - SMALL_BODY) - self.size)
        return not self.is_evicted

    def finish(self) -> None:
        """Keep the room until `release`: the body has arrived."""
        self._room.finish(self)

    def release(self) -> None:
        """Give the room back."""
        self._room.leave(self)

    def evict(self) -> None:
        """Give the room back, and end receiving the body."""
        self.is_evicted = True
        self._room.leave(self)
        self.scope.cancel()
