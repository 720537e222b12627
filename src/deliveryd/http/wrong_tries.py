"""How often a peer may be wrong, such as with a token, before it has to wait.

Only what is wrong is counted and answered so: whoever has the right token is never shut out by others.
"""

from __future__ import annotations

from collections import OrderedDict

import anyio

MOST_WRONG = 10
PERIOD = 60.0
"""Wrong tries that one peer may make, and the seconds after which they are forgotten."""

MOST_PEERS = 1000


class WrongTries:
    """The wrong tries that peers made lately."""

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
