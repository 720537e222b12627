"""Operators' orders, carried out in a log."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deliveryd.journal.orders import Decided, Order
from deliveryd.journal.sql import pauses
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.operations import Operations
from deliveryd.journal.sql.order_table import carry_out_order
from deliveryd.journal.sql.outbox import Outbox
from deliveryd.journal.sql.pause_orders import PAUSE_ORDERS, carry_out_pauses, note_end
from deliveryd.journal.sql.pauses import Pause
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.journal.sql.records import Records


class Decisions:
    """Carries out orders in the embedded journal."""

    def __init__(self, operations: Operations, matching: Matching, outbox: Outbox) -> None:
        self._operations = operations
        self._matching = matching
        self._outbox = outbox

    def carry_out(self, db: Db, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an order for each of its keys, where that can be done."""
        records = self._records(db)
        if order.verb in PAUSE_ORDERS:
            return carry_out_pauses(records, order, at, providers)
        return carry_out_order(records, order, at, providers)

    def end_pauses(self, db: Db, now: int) -> Sequence[Pause]:
        """Resume what was paused until now, and record that; return all other pauses."""
        records = self._records(db)
        for each in pauses.ended_pauses(db, now):
            if pauses.end_pause(db, each.kind, each.key):  # else another worker was first
                note_end(records, each.kind, each.key, now)
        return pauses.pauses(db)

    def _records(self, db: Db) -> Records:
        return Records(db, self._operations, self._matching, self._outbox)
