"""The outbox: every event behind all that were ever written, and one number up to which they are settled."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from deliveryd.errors import OutOfOrder
from deliveryd.journal.base import OutboxRow
from deliveryd.journal.schema import EventWriter
from deliveryd.model import StatusEvent

WATERMARK = "(SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'settled_seq')"
"""SQL for the watermark: the service accepted or refused every event up to this number, and none above it."""

ACCEPTED_AT = (
    "(SELECT iif(first <= event.seq, at, NULL) FROM post WHERE last >= event.seq ORDER BY last LIMIT 1)"
)
"""SQL for when the service accepted an event; NULL: it didn't."""

HAPPENED = "coalesce(first_seq, seq)"
"""SQL for an event's place in the order in which things happened, whenever it was reported."""


class Outbox:
    """Where steps put their events. `last_seq` is the number of the last event that was ever written."""

    def __init__(self, events: EventWriter, last_seq: int) -> None:
        self._events = events
        self._seq = last_seq

    def put(self, db: sqlite3.Connection, events: Iterable[StatusEvent]) -> None:
        """Put new events in."""
        write = self._events.write
        self.put_again(db, ((event.message_id, event.status, write(event)) for event in events))

    def put_again(self, db: sqlite3.Connection, events: Iterable[tuple[int, str, str]]) -> None:
        """Put events in as they were written before: message id, status, JSON."""
        db.executemany(
            "INSERT INTO event (seq, message_id, status, body) VALUES (?, ?, ?, ?)", self._numbered(events)
        )

    def put_last(self, db: sqlite3.Connection, seqs: Sequence[int]) -> None:
        """Have events wait behind all others that were settled, or wait further ahead."""
        db.executemany(
            "UPDATE event SET seq = ?, first_seq = coalesce(first_seq, seq),"
            " refused_at = NULL, refused = NULL WHERE seq = ?",
            [(number, seq) for number, seq in enumerate(seqs, self._seq + 1)],
        )
        self._seq += len(seqs)

    def _numbered(self, events: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, int, str, str]]:
        for event in events:
            self._seq += 1
            yield self._seq, *event


def settle(db: sqlite3.Connection, rows: Sequence[OutboxRow]) -> range:
    """Raise the watermark to the last of these events; return the numbers that are settled by it.

    Raises OutOfOrder when an event that waits further ahead isn't among them: it would never be reported.
    """
    (settled,) = db.execute(f"SELECT {WATERMARK}").fetchone()
    last = max((row.seq for row in rows), default=0)
    if last <= settled:
        return range(0)
    ahead = {
        seq for (seq,) in db.execute("SELECT seq FROM event WHERE seq > ? AND seq <= ?", (settled, last))
    }
    if left := ahead.difference([row.seq for row in rows]):
        raise OutOfOrder(f"event {last} can't be settled before event {min(left)}, which waits ahead of it")
    db.execute("UPDATE meta SET value = ? WHERE key = 'settled_seq'", (last,))
    return range(settled + 1, last + 1)
