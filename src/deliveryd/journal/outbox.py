"""Puts status events behind all that were ever written, each with the number that keeps their order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from deliveryd.journal.schema import EventWriter
from deliveryd.model import StatusEvent


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

    def _numbered(self, events: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, int, str, str]]:
        for event in events:
            self._seq += 1
            yield self._seq, *event
