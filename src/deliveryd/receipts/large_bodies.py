"""Room for large requests: how much they may take together, and who has to leave if it isn't enough."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

SMALL_BODY = 64 << 10
"""Bytes of a body that always have room: of as many requests as there may be connections."""

LARGE_BODIES = 8 << 20
"""Bytes that all bodies together may have beyond that, or as many as the largest request."""


@dataclass(slots=True, eq=False)
class HeldRoom:
    """What one request holds of the room; `scope` receives its body, and is cancelled if it has to leave."""

    peer: str | None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    size: int = 0
    is_evicted: bool = False


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

    def grow(self, held: HeldRoom, length: int) -> bool:
        """Give a body that arrives room for this length, which others may have to leave; whether it stays."""
        if held.is_evicted:
            return False
        more = max(0, length - SMALL_BODY) - held.size
        self._unfinished[held] = None
        held.size += more
        self._taken += more
        own = [each for each in self._unfinished if each.peer == held.peer]
        if held.peer is not None and sum(each.size for each in own) > self._share:
            self._evict(own[0])
        while self._taken > self._size and self._unfinished:
            self._evict(next(iter(self._unfinished)))
        return not held.is_evicted

    def finish(self, held: HeldRoom) -> None:
        """Let a body that has arrived stay until it leaves."""
        self._unfinished.pop(held, None)

    def leave(self, held: HeldRoom) -> None:
        """Take the room of a body back."""
        self._unfinished.pop(held, None)
        self._taken -= held.size
        held.size = 0

    def _evict(self, held: HeldRoom) -> None:
        held.is_evicted = True
        self.leave(held)
        held.scope.cancel()
