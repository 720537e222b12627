"""The recipients who can't be reached on a channel any more, in memory: asked before each message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import anyio

from deliveryd.journal.sql.stopped import digest_of_address
from deliveryd.metrics import Metrics
from deliveryd.model import StopChange
from deliveryd.telemetry.log_events import Event, log


class StoppedRecipients:
    """The list that the journal keeps; empty until it is loaded. `key` is that of the digests."""

    def __init__(self, key: bytes, metrics: Metrics | None = None) -> None:
        self._key = key
        self._metrics = metrics
        self._changes: Counter[tuple[str, bool]] = Counter()
        self.turn = anyio.Lock()
        """Held while receipts and orders change the list: in memory it changes in the journal's order."""

        self.digests: dict[str, set[bytes]] = {}
        """By channel, only those with a suppressed recipient: if there are none, nothing is computed."""

    def load(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Take over the channel and the digest of each recipient."""
        for channel, digest in rows:
            self.digests.setdefault(channel, set()).add(digest)

    def apply(self, change: StopChange) -> None:
        """Follow a change that the journal recorded."""
        if self.follow(change):
            self._changes[change.channel, change.stopped] += 1
            if self._metrics is not None:
                self._metrics.stop_changed(change.channel, change.stopped)

    def log_counts(self) -> None:
        """Log how many were put on the list or taken off it since the last call, by channel."""
        changes, self._changes = self._changes, Counter()
        for (channel, stopped), count in sorted(changes.items()):
            event = Event.RECIPIENTS_STOPPED if stopped else Event.RECIPIENTS_RESUMED
            log(event, channel=channel, count=count)

    def follow(self, change: StopChange) -> bool:
        """The same for a change that another worker recorded and counts; return whether it was none here."""
        there = self.digests.get(change.channel, set())
        if (change.digest in there) is change.stopped:
            return False
        if change.stopped:
            self.digests.setdefault(change.channel, there).add(change.digest)
            return True
        there.discard(change.digest)
        if not there:
            del self.digests[change.channel]
        return True

    def stop(self, channel: str, address: str, at: int, reason: str) -> StopChange:
        """Put a recipient on the list by an answer; return the change to record."""
        change = StopChange(channel, self.digest(channel, address), at, reason=reason)
        self.apply(change)
        return change

    def digest(self, channel: str, address: str) -> bytes:
        """Return the digest of an address."""
        return digest_of_address(self._key, channel, address)

    def includes(self, channel: str, addresses: Iterable[str]) -> bool:
        """Whether the recipient stopped the channel at all of these addresses. One without any didn't."""
        there = self.digests.get(channel)
        if there is None:
            return False
        known = [self.digest(channel, address) for address in addresses]
        return bool(known) and there.issuperset(known)
