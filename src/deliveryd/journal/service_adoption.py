"""An operator's word that a service has moved: its journal belongs to another base address from now on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from deliveryd.errors import JournalUnusable
from deliveryd.journal.orders import Order
from deliveryd.journal.place import NOT_INSTALLED, JournalFile, JournalPlace
from deliveryd.journal.sql.orders import RECORD
from deliveryd.journal.sql.own_values import keep_service, kept_service
from deliveryd.journal.sqlite.lock import exclusive_journal
from deliveryd.journal.sqlite.opening import checked, open_database, read


def read_service(path: Path) -> str | None:
    """Return the address that a journal's file belongs to; None: no worker has used it yet.

    Raises JournalAbsent if there is no journal, JournalError.
    """
    return read(path, kept_service)


def adopt_service(place: JournalPlace, order: Order, at: int) -> str | None:
    """Have the journal belong to the address that is the order's key; return the one that it had before.

    If that is the same, nothing is done or recorded. Raises JournalLocked while a worker uses the journal,
    JournalAbsent if there is none, JournalError.
    """
    if isinstance(place, JournalFile):
        return _adopt(place.path, order, at)
    try:
        from deliveryd.journal.postgresql.workers import Workers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise JournalUnusable(f"journal.url {NOT_INSTALLED}") from error
    return Workers(place).adopt_service(order, at)


def _adopt(path: Path, order: Order, at: int) -> str | None:
    (service,) = order.keys
    if read_service(path) == service:  # raises JournalAbsent: opening it would make one
        return service
    record = (at, order.verb, order.kind, service, None, order.user, order.caller, order.reason)
    with exclusive_journal(path), closing(open_database(path)) as db:

        def adopt() -> str | None:
            db.execute("BEGIN IMMEDIATE")
            before = kept_service(db)
            keep_service(db, service)
            db.execute(RECORD, record)
            db.execute("COMMIT")
            return before

        return checked(path, adopt)
