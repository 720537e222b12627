"""The service whose messages a journal holds, by its base address.

Another service's ids mean other messages: a worker that is configured for it must not use this journal.
"""

from __future__ import annotations

from deliveryd.errors import JournalUnusable
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.schema import KEEP_VALUE

SERVICE = "service"
"""The key of the address among the journal's own values."""


def difference(kept: str | None, service: str) -> str | None:
    """Why a worker of the service at this address can't use the journal, and what to do; None: it can.

    `kept` is the address that the journal knows; None: it belongs to no service yet.
    """
    if kept is None or kept == service:
        return None
    return (
        f"the journal belongs to the service at {kept}, and service.base_url names {service}: if that service"
        " only moved, run deliveryd journal adopt-service; else name another journal in journal.url"
    )


def belong_to(db: Db, service: str) -> None:
    """Belong to a service from now on, if to none so far. Raises JournalUnusable if to another one."""
    kept = kept_service(db)
    if kept is None:
        keep_service(db, service)
    if (problem := difference(kept, service)) is not None:
        raise JournalUnusable(problem)


def kept_service(db: Db) -> str | None:
    """The address of the service that the journal belongs to; None: no worker has used it yet."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (SERVICE,)).fetchone()
    return None if row is None else str(row[0])


def keep_service(db: Db, service: str) -> None:
    """Belong to the service at this address, whatever was kept before."""
    db.execute(KEEP_VALUE, (SERVICE, service))
