"""The limit of messages in the line's hands (`queue.max_in_flight`)."""

from __future__ import annotations

from collections.abc import Iterable

from deliveryd.runtime.wakeup import AutoResetEvent


class InFlightLimit:
    """How many messages the line may hold at a time, and which ones it holds.

    A message holds its place from the take until it waits in the journal for a later time, or until the
    service accepted the event of its end. So an outage of the events endpoint stops the taking; an event that
    the service fails at, while it accepts others, frees the place.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: set[int] = set()
        self.freed = AutoResetEvent()
        self._owed = 0

    def change(self, most: int) -> None:
        """Allow another number of places from now on; messages that have one keep it."""
        self.most = most
        self.freed.set()

    @property
    def free(self) -> int:
        """How many more messages may be held."""
        return max(self.most - len(self._held), 0)

    @property
    def free_to_take(self) -> int:
        """How many new messages may be taken: some places, half at most, are left to due messages."""
        return max(self.free - min(self._owed, max(self.most // 2, 1)), 0)

    @property
    def free_for_some(self) -> int:
        """A part of the free places, for messages that may have to wait again at once."""
        return (self.free + 1) // 2

    @property
    def spare(self) -> int:
        """How many free places one provider may take beyond its share, so that half stays for the others."""
        return max(self.free - self.most // 2, 0)

    @property
    def held(self) -> int:
        """How many messages are held."""
        return len(self._held)

    def owe(self, count: int) -> None:
        """Set how many messages that were taken long ago are due and found no place."""
        self._owed = count

    def hold(self, ids: Iterable[int]) -> None:
        """Give these messages a place each; one that has a place keeps it."""
        self._held.update(ids)

    def release(self, ids: Iterable[int]) -> None:
        """Free their places."""
        before = len(self._held)
        self._held.difference_update(ids)
        if len(self._held) < before:
            self.freed.set()
