"""The service that all workers of the journal belong to: see `deliveryd.journal.service`."""

from __future__ import annotations

from deliveryd.errors import JournalUnusable
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.service import SERVICE, difference

_KEEP = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def belong_to(db: Db, service: str) -> None:
    """Belong to a service from now on, if to none so far, in the transaction that is open.

    Raises JournalUnusable if it belongs to another one.
    """
    kept = kept_service(db)
    if kept is None:
        keep_service(db, service)
    if (problem := difference(kept, service)) is not None:
        raise JournalUnusable(problem)


def kept_service(db: Db) -> str | None:
    """The address of the service that the journal belongs to; None: no worker has used it yet."""
    row = db.execute("SELECT value FROM meta WHERE key = %s", (SERVICE,)).fetchone()
    return None if row is None else str(row[0])


def keep_service(db: Db, service: str) -> None:
    """Belong to the service at this address, whatever was kept before."""
    db.execute(_KEEP, (SERVICE, service))
