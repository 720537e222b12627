"""Read transactions beside the workers: each is one snapshot, and holds up nobody who writes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psycopg

from deliveryd.errors import JournalError, JournalUnreachable, JournalUnusable
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import Db, connect_to_read, is_lost
from deliveryd.journal.postgresql.schema import PARTITIONED, check_readable

T = TypeVar("T")

_KEEP_DAYS = f"LOCK TABLE {', '.join(reversed(PARTITIONED))} IN ACCESS SHARE MODE"
"""Before the snapshot is taken: a day that is dropped after it would be gone from it nevertheless.

In the order in which a day is dropped.
"""


class Snapshots:
    """Reads of one database. A connection is kept for the next read; several threads have several."""

    def __init__(self, source: JournalDatabase) -> None:
        self._source = source
        self._kept: list[Db] = []
        weakref.finalize(self, _close_all, self._kept)

    def read(self, query: Callable[[Db], T]) -> T:
        """Run a query on one snapshot. Raises JournalAbsent, JournalUnreachable, JournalUnusable."""
        try:
            with suppress(IndexError, psycopg.OperationalError):  # none is kept, or the server went away
                return self._read_on(self._kept.pop(), query)
            return self._read_on(self._connect(), query)
        except psycopg.Error as error:
            raise _translated(error) from error

    def _connect(self) -> Db:
        db = connect_to_read(self._source)
        try:
            check_readable(db, self._source.name)
            db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        except BaseException:
            db.close()
            raise
        return db

    def _read_on(self, db: Db, query: Callable[[Db], T]) -> T:
        try:
            with db.transaction():
                db.execute(_KEEP_DAYS)
                result = query(db)
        except BaseException:
            db.close()
            raise
        self._kept.append(db)
        return result


def _close_all(connections: list[Db]) -> None:
    for db in connections:
        db.close()


def _translated(error: psycopg.Error) -> JournalError:
    said = next(iter(str(error).strip().splitlines()), type(error).__name__)
    text = f"the journal's database can't be read: {said}"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return JournalUnusable(f"{text}; grant SELECT on its tables to the user that journal.url names")
    return JournalUnreachable(text) if is_lost(error) else JournalError(text)
