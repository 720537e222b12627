"""The disk that the journal lies on: full for a while, as SQLite and the system tell the worker."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from deliveryd.journal.sqlite import SqliteJournal
from simulation.plan import Shortage

SMALL_PAGE = 512
"""Bytes of a page: in larger ones so few messages would find room for ever."""

_NO_LIMIT = 0xFFFFFFFE
_MORE_THAN_ANY_DISK = 1 << 62


class Disk:
    """Bounds the journal that is open at present."""

    def __init__(self, shortages: Sequence[Shortage]) -> None:
        self._shortages = shortages
        self._current: Shortage | None = None
        self._journal: SqliteJournal | None = None

    async def run(self) -> None:
        """Let happen what is planned, one shortage after the other."""
        for shortage in sorted(self._shortages, key=lambda shortage: shortage.at):
            await anyio.sleep_until(shortage.at)
            self._set(shortage)
            await anyio.sleep_until(shortage.at + shortage.seconds)
            self._set(None)

    def attach(self, journal: SqliteJournal) -> None:
        """A worker opened its journal."""
        self._journal = journal
        if self._current is not None:
            self._set(self._current)

    def detach(self) -> None:
        """The journal is closed."""
        self._journal = None

    def _set(self, shortage: Shortage | None) -> None:
        self._current = shortage
        if self._journal is None:
            return
        pages = 1 if shortage is not None else _NO_LIMIT  # SQLite makes it what the file has already
        self._journal._db.execute(f"PRAGMA max_page_count = {pages}")
        is_seen = shortage is not None and shortage.seen
        self._journal.reserve = _MORE_THAN_ANY_DISK if is_seen else 0
