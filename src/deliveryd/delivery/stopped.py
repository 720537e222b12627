"""The recipients who can't be reached on a channel any more, in memory: asked before each message."""

from __future__ import annotations

from collections.abc import Iterable

from deliveryd.journal.stopped import digest_of_address
from deliveryd.model import StopChange


class StoppedRecipients:
    """The list that the journal keeps; empty until it is loaded. `key` is that of the digests."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.digests: dict[str, set[bytes]] = {}
        """By channel, only those on which somebody is stopped: where there are none, nothing is computed."""

    def load(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Take over the channel and the digest of each recipient."""
        for channel, digest in rows:
            self.digests.setdefault(channel, set()).add(digest)

    def apply(self, change: StopChange) -> None:
        """Follow a change that the journal recorded."""
        if change.stopped:
            self.digests.setdefault(change.channel, set()).add(change.digest)
        elif (there := self.digests.get(change.channel)) is not None:
            there.discard(change.digest)
            if not there:
                del self.digests[change.channel]

    def stop(self, channel: str, address: str, at: int, reason: str) -> StopChange:
        """Put a recipient on the list by an answer; return the change to record."""
        change = StopChange(channel, self.digest(channel, address), at, reason=reason)
        self.apply(change)
        return change

    def digest(self, channel: str, address: str) -> bytes:
        """Return the digest of an address."""
        return digest_of_address(self._key, channel, address)

    def includes(self, channel: str, address: str | None) -> bool:
        """Whether the recipient with this address stopped the channel. An unknown address didn't."""
        there = self.digests.get(channel)
        return there is not None and address is not None and self.digest(channel, address) in there
