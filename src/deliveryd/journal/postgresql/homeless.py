"""What waits at providers that nobody has any more goes elsewhere, while workers run.

A start does it for all that it finds. Later a provider is nobody's any more when the last worker that had it
has been away for long enough (see `elsewhere`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.waiting import bound_to, leave

LOOKED_FOR_EVERY = 60.0
"""Seconds between two looks at where messages wait."""

LOOKED_AGAIN_AFTER = 5.0
"""Seconds after which what waits at providers of nobody is looked for once more.

The first time skips rows that another worker is changing.
"""

MOST_UNBOUND = 1000
"""Messages that one commit lets go elsewhere, and as many that it holds, at most."""


class Homeless:
    """Watches which providers nobody has any more. What it remembers is of commits that took place."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._foreign: frozenset[str] = frozenset()
        self._gone: frozenset[str] = frozenset()
        self._is_look = self._is_complete = self._is_second = False
        self._next_at = 0.0
        self._looked_at = float("-inf")

    def begin(self, foreign: Collection[str]) -> None:
        """A start put in order what it found; only others have these providers."""
        self._foreign = frozenset(foreign)
        self._looked_at = self._clock()

    def sweep(self, db: Db, now: int, foreign: Collection[str], own: Collection[str]) -> None:
        """Hold a portion of what is in doubt at providers of nobody, and let all else be due anywhere."""
        known = frozenset(foreign).union(own)
        gone = self._foreign
        self._foreign = frozenset(foreign)
        self._is_look = self._clock() - self._looked_at >= LOOKED_FOR_EVERY
        if self._is_look:
            gone |= bound_to(db)
        if gone := gone - known - self._gone:
            self._is_second, self._next_at = False, self._clock()
        self._gone = (self._gone | gone) - known
        self._is_complete = False
        if self._gone and self._clock() >= self._next_at:
            self._is_complete = max(leave(db, self._gone, now, MOST_UNBOUND)) < MOST_UNBOUND

    def remember(self) -> None:
        """The commit took place."""
        if self._is_look:
            self._looked_at = self._clock()
        if self._is_complete and self._is_second:
            self._gone, self._is_second = frozenset(), False
        elif self._is_complete:
            self._is_second, self._next_at = True, self._clock() + LOOKED_AGAIN_AFTER
