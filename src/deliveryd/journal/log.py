"""A log: a set of messages with their tries, events and receipts, which one worker writes at a time.

A file is one log. A database holds several; a worker has one of its own, and those that it took over.
"""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.deletion import RetentionSweep
from deliveryd.journal.sql.operations import Operations
from deliveryd.journal.sql.orders import Orders
from deliveryd.journal.sql.outbox import EventWriter, Outbox, written
from deliveryd.journal.sql.provider_ids import ProviderIds
from deliveryd.journal.sql.receipt_match import Matching

LOG_BITS = 40
"""Bits of an event's number within its log; those above are the number of the log."""


class LogTerms(NamedTuple):
    """What all logs of a journal have in common. `emptied`: see `statements.EMPTIED`."""

    events: EventWriter
    namespace: str
    emptied: str
    ids: ProviderIds


class Log:
    """What records in one log; `number` is 0 in a file. Built while the log is worked on."""

    def __init__(self, db: Db, number: int, terms: LogTerms) -> None:
        left = written(db)
        outbox = Outbox(terms.events, left)
        self.number = number
        self.ahead = 0
        """Microseconds by which its listening time is ahead of that of the worker's own log."""

        self.is_new = False
        """Whether it was taken over since listening time was last added: most of that was before."""

        self.last_at = left.last_at
        self.outbox = outbox
        self.matching = Matching(outbox, terms.namespace, terms.emptied, terms.ids)
        self.operations = Operations(outbox, self.matching, terms.emptied)
        self.orders = Orders(self.operations, self.matching, outbox)
        self.retention = RetentionSweep()


def log_of(seq: int) -> int:
    """The number of the log that an event is in."""
    return seq >> LOG_BITS
