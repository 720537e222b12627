"""Counts what workers that share a journal do to each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from deliveryd.journal.postgresql import adoption, lease, retention
from simulation.ledger import Ledger
from simulation.statements import acting


@contextmanager
def counted_in(ledger: Ledger) -> Iterator[None]:
    """While it lasts, leases that are ended, logs that are adopted and days that are dropped are counted."""

    def fence(*terms: Any) -> bool:
        is_over = usual_fence(*terms)
        ledger.fenced += is_over
        return is_over

    def leave(*terms: Any) -> None:
        ledger.adoptions += 1
        usual_leave(*terms)

    def drop(db: Any, table: str, *terms: Any) -> None:
        """With the lock of a drop the stage itself couldn't look at the table: nothing comes between."""
        if (process := acting()) is not None:
            process.hurry(db)
        usual_drop(db, table, *terms)
        ledger.days_dropped += table == "message"

    usual_fence, usual_leave, usual_drop = lease.fence, adoption._leave_to_others, retention._drop
    with (
        patch.object(lease, "fence", fence),
        patch.object(adoption, "_leave_to_others", leave),
        patch.object(retention, "_drop", drop),
    ):
        yield
