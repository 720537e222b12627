"""Listening time: how long receipts could be received. Receipt deadlines are measured in it."""

from __future__ import annotations

import anyio

from deliveryd.model import SECOND, Confirmation
from deliveryd.runtime.wakeup import AutoResetEvent

TICK = 5.0
"""Seconds between two records of the listening time, while a deadline waits."""


UNRECORDED = 60.0
"""Seconds that the record of an acceptance may take, on a disk that is very slow."""


class ListeningTime:
    """How long receipts could be received so far, in microseconds.

    It stands still while no deadline waits, so that an idle worker records nothing. Where it may take over
    what other workers left, it goes on.
    """

    def __init__(self) -> None:
        self._total = 0
        self._since: float | None = None  # the event loop's time up to which it is counted; None: it stands
        self._accepted_at = float("-inf")  # the event loop's time of the last acceptance
        self.begun = AutoResetEvent()
        """Set when it goes on after it stood still."""

    @property
    def stands_still(self) -> bool:
        """Whether it stands still."""
        return self._since is None

    def start(self, total: int) -> None:
        """Go on from what the journal kept."""
        self._total = total
        self._since = anyio.current_time()

    def instant_in(self, microseconds: int) -> int:
        """The point of the listening time that lies so far ahead; a deadline waits from now on."""
        self._accepted_at = anyio.current_time()
        if self._since is None:
            self._since = self._accepted_at
            self.begun.set()
        return self._total + self._elapsed(self._since) + microseconds

    def _elapsed(self, since: float) -> int:
        """Microseconds to count; a process that was stopped for longer received nothing meanwhile."""
        return int(min(anyio.current_time() - since, 2 * TICK) * SECOND)

    def count(self) -> int:
        """Count on; return the microseconds since the last call."""
        if self._since is None:
            return 0
        elapsed = self._elapsed(self._since)
        self._total += elapsed
        self._since = anyio.current_time()
        return elapsed

    def skip(self) -> None:
        """Leave out the time since the last call of `count`: nothing could be received."""
        if self._since is not None:
            self._since = anyio.current_time()

    def until(self, instant: int) -> float:
        """Seconds until a point of the listening time."""
        return (instant - self._total) / SECOND

    def nothing_waits(self) -> None:
        """Stand still, unless a message was accepted a short while ago: it may not be recorded yet."""
        if anyio.current_time() >= self._accepted_at + UNRECORDED:
            self._since = None


class Awaited:
    """What messages that one provider accepts may still lead to.

    `within` is the length of their deadline in seconds; None: they have none. `failed_next`: a failure that
    is reported leads to the next channel.
    """

    def __init__(self, time: ListeningTime, within: float | None, *, failed_next: bool) -> None:
        self._time = time
        self._within = None if within is None else int(within * SECOND)
        self._failed_next = failed_next

    def confirmation(self) -> Confirmation:
        """The same for a message that is accepted now."""
        by = None if self._within is None else self._time.instant_in(self._within)
        return Confirmation(by, self._within, self._failed_next)
