"""Counts what workers that share a journal do to each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from deliveryd.journal.postgresql import lease, logs
from simulation.ledger import Ledger


@contextmanager
def counted_in(ledger: Ledger) -> Iterator[None]:
    """While it lasts, leases that are ended and logs that are taken over are counted."""

    def fence(*terms: Any) -> bool:
        is_over = usual_fence(*terms)
        ledger.fenced += is_over
        return is_over

    def take_over(*terms: Any) -> bool:
        is_taken = usual_take_over(*terms)
        ledger.adoptions += is_taken
        return is_taken

    usual_fence, usual_take_over = lease.fence, logs.take_over
    with patch.object(lease, "fence", fence), patch.object(logs, "take_over", take_over):
        yield
