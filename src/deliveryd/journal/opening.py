"""Opens the journal of a place, whichever kind it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from deliveryd.errors import JournalUnusable
from deliveryd.journal.place import NOT_INSTALLED, JournalFile, JournalPlace

if TYPE_CHECKING:
    from deliveryd.journal.journal import Journal
    from deliveryd.journal.reader import Reader
    from deliveryd.runtime.threads import Blocking


class JournalTerms(NamedTuple):
    """How a worker keeps its journal; each kind of journal uses what concerns it.

    `reserve`: free bytes on the disk below which nothing more is taken. `lock_timeout`: seconds until another
    process has to be done with the file. `lease`: seconds after which a worker that commits nothing is given
    up by the others. `service`: the address of the service that the journal has to belong to; None: of a
    command, which does what it does whatever that is.
    """

    details_field: str = "details"
    keep_variables: bool = False
    reserve: int = 0
    lock_timeout: float = 0.0
    lease: float = 20.0
    service: str | None = None


@asynccontextmanager
async def open_journal(
    place: JournalPlace,
    terms: JournalTerms,
    *,
    observe: Callable[[float, int], None] = lambda _seconds, _operations: None,
    blocking: Blocking | None = None,
) -> AsyncIterator[Journal]:
    """Open the journal, and close it when the block ends.

    `observe` is called after each commit with its seconds and how many operations shared it. `blocking` None:
    the journal has a thread of its own. Raises JournalLocked when another process has it, JournalError when
    it can't be used.
    """
    if isinstance(place, JournalFile):
        from deliveryd.journal.sqlite.journal import open_journal_file  # noqa: PLC0415  # a database needs none

        async with open_journal_file(
            place.path,
            details_field=terms.details_field,
            observe=observe,
            blocking=blocking,
            reserve=terms.reserve,
            lock_timeout=terms.lock_timeout,
            keep_variables=terms.keep_variables,
            service=terms.service,
        ) as file:
            yield file
        return
    try:
        from deliveryd.journal.postgresql import opening  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise JournalUnusable(f"journal.url {NOT_INSTALLED}") from error
    async with opening.open_shared_journal(
        place,
        details_field=terms.details_field,
        observe=observe,
        blocking=blocking,
        keep_variables=terms.keep_variables,
        lease=terms.lease,
        service=terms.service,
    ) as database:
        yield database


def open_reader(place: JournalPlace) -> Reader:
    """What reads the journal beside a worker, or without one. Raises JournalUnusable."""
    if isinstance(place, JournalFile):
        from deliveryd.journal.reader import file_reader  # noqa: PLC0415  # as above

        return file_reader(place.path)
    try:
        from deliveryd.journal.postgresql.reading import database_reader  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise JournalUnusable(f"journal.url {NOT_INSTALLED}") from error
    return database_reader(place)
