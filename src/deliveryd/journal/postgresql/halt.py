"""What happens after the database lost commits that it had acknowledged: every worker stops.

A worker notices by the counter of its lease, which is behind what was acknowledged to it: an asynchronous
standby took over, or an old copy was restored. What the others did may be lost as well. So the worker leaves
a mark, in a transaction that needs no lease, which ends all leases; while the mark is there nobody begins to
work. An operator decides (`deliveryd accept-loss`).

A worker that has ended remembers nothing: if all of them ended before the standby took over, nobody notices.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from deliveryd.errors import JournalError
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.postgresql.schema import lock_schema

HALTED = "halted"
"""How a lease ended that was ended by the mark."""

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8"
_NOTE = f"""
INSERT INTO main.loss (noticed_at, worker, name, acknowledged, found) VALUES ({_NOW}, %s, %s, %s, %s)
"""
_UNACCEPTED = """
SELECT noticed_at, worker, name, acknowledged, found FROM main.loss WHERE accepted_at IS NULL ORDER BY seq
"""


class CommitsLost(JournalError):
    """The database doesn't have what it had acknowledged; nothing more may be recorded in it.

    `acknowledged`: how many commits of this worker were. `found`: how many the database has; None: it doesn't
    know the worker.
    """

    def __init__(self, worker: int, acknowledged: int, found: int | None) -> None:
        super().__init__(
            "the database lost commits that it had acknowledged: a standby without them took over, or an old"
            " copy was restored; all workers stop until you decide: run deliveryd accept-loss"
        )
        self.worker = worker
        self.acknowledged = acknowledged
        self.found = found


class JournalHalted(JournalError):
    """A worker noticed that commits were lost, and no operator has decided yet."""


class Loss(NamedTuple):
    """What one worker noticed, and when by the database's clock; the other fields are CommitsLost's."""

    noticed_at: int
    worker: int
    name: str
    acknowledged: int
    found: int | None

    @property
    def lost(self) -> int:
        """How many of its commits are lost."""
        return self.acknowledged - (self.found or 0)


def own_name() -> str:
    """This process's name, for people."""
    return f"{socket.gethostname()}/{os.getpid()}"


def halt(db: Connected, loss: CommitsLost) -> None:
    """Leave the mark, and end all leases."""
    with db.transaction():
        lock_schema(db)
        db.execute(_NOTE, (loss.worker, own_name(), loss.acknowledged, loss.found))
        db.execute("UPDATE main.worker SET ended = %s WHERE ended IS NULL", (HALTED,))


def losses(db: Connected) -> Sequence[Loss]:
    """Return what was noticed since an operator last accepted a loss."""
    return [Loss(*row) for row in db.execute(_UNACCEPTED)]


def check_not_halted(db: Connected) -> None:
    """Raise JournalHalted while the mark is there; call it under `lock_schema` before a worker begins."""
    if found := losses(db):
        raise JournalHalted(
            f"the database lost commits that it had acknowledged, as the worker {found[0].name} noticed;"
            " no worker starts until you decide: run deliveryd accept-loss"
        )


def accept_losses(db: Connected, at: int) -> int:
    """Remove the mark; return how many workers had noticed a loss."""
    return db.execute("UPDATE main.loss SET accepted_at = %s WHERE accepted_at IS NULL", (at,)).rowcount
