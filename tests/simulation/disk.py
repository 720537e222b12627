"""The disk that the journal lies on: full for a while, as SQLite and the system tell the worker.

A journal in a database is out of reach meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf

import anyio

from deliveryd.journal.group_commit import FULL_PAUSE
from deliveryd.journal.journal import Journal
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.sqlite.journal import SqliteJournal
from simulation.plan import Shortage

SMALL_PAGE = 512
"""Bytes of a page: in larger ones so few messages would find room for ever."""

_NO_LIMIT = 0xFFFFFFFE
_MORE_THAN_ANY_DISK = 1 << 62


class Disk(ABC):
    """Bounds the journal that is open at present."""

    def __init__(self, shortages: Sequence[Shortage]) -> None:
        self._shortages = shortages
        self._current: Shortage | None = None
        self._was_short_at = -inf

    @property
    def is_short(self) -> bool:
        """Whether nothing can be written at present."""
        return self._current is not None

    @property
    def was_just_short(self) -> bool:
        """Whether nothing could be written when a worker tried it last."""
        return self.is_short or anyio.current_time() - self._was_short_at <= FULL_PAUSE

    async def run(self) -> None:
        """Let happen what is planned, one shortage after the other."""
        for shortage in sorted(self._shortages, key=lambda shortage: shortage.at):
            await anyio.sleep_until(shortage.at)
            self._current = shortage
            self._set(shortage)
            await anyio.sleep_until(shortage.at + shortage.seconds)
            self._current = None
            self._was_short_at = anyio.current_time()
            self._set(None)

    @abstractmethod
    async def reachable(self) -> None:
        """Return when a worker can open the journal."""

    @abstractmethod
    def attach(self, journal: Journal) -> None:
        """A worker opened its journal."""

    @abstractmethod
    def detach(self) -> None:
        """The journal is closed."""

    @abstractmethod
    def _set(self, shortage: Shortage | None) -> None:
        """Begin a shortage, or end it."""


class FileDisk(Disk):
    """The disk of a SQLite file."""

    _journal: SqliteJournal | None = None

    async def reachable(self) -> None:
        """It always can."""

    def attach(self, journal: Journal) -> None:
        """A worker opened its journal."""
        assert isinstance(journal, SqliteJournal)
        self._journal = journal
        if self._current is not None:
            self._set(self._current)

    def detach(self) -> None:
        """The journal is closed."""
        self._journal = None

    def _set(self, shortage: Shortage | None) -> None:
        if self._journal is None:
            return
        pages = 1 if shortage is not None else _NO_LIMIT  # SQLite makes it what the file has already
        self._journal._db.execute(f"PRAGMA max_page_count = {pages}")
        is_seen = shortage is not None and shortage.seen
        self._journal.reserve = _MORE_THAN_ANY_DISK if is_seen else 0


class DatabaseDisk(Disk):
    """The way to a database, which breaks off: connections are lost, and none can be made."""

    _journal: PostgresqlJournal | None = None

    async def reachable(self) -> None:
        """Return when a worker can open the journal: one that can't ends, and is started again."""
        while self.is_short:  # noqa: ASYNC110  # in virtual time
            await anyio.sleep(1.0)

    def attach(self, journal: Journal) -> None:
        """A worker opened its journal."""
        assert isinstance(journal, PostgresqlJournal)
        self._journal = journal

    def detach(self) -> None:
        """The journal is closed."""
        self._journal = None

    def _set(self, shortage: Shortage | None) -> None:
        if shortage is not None and self._journal is not None:
            self._journal._db.close()
