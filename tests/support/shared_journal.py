"""A journal that several workers share, as far as one of them sees it: a test says what the others did."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

import anyio

from deliveryd.errors import JournalError
from deliveryd.journal.base import Allotment, FromOthers, SharedLimits
from deliveryd.journal.journal import Journal
from deliveryd.journal.opening import open_journal
from deliveryd.worker import wiring


class SharedJournal:
    """A real journal in a file, with what a test says of other workers and of this one's lease."""

    is_shared = True
    is_unreachable = False

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.news: deque[FromOthers | JournalError] = deque()
        self.followed: list[tuple[float, Collection[str]]] = []
        self.older_workers: frozenset[tuple[int, int]] = frozenset()
        self.lasts = True
        self.asked: list[float] = []
        self.renewable = anyio.Event()
        self.renewable.set()
        self.renewals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    @property
    def full(self) -> bool:
        """Also while the database can't be reached."""
        return self.is_unreachable or self._journal.full

    def has_room(self) -> bool:
        """Not while it waits."""
        return not self.full

    @property
    def limits(self) -> SharedLimits:
        """Of which the other workers use nothing."""
        return self

    async def allot(self, provider: str, interval: float, wanted: int) -> Allotment:
        """As many as are wanted."""
        return Allotment(wanted, 0.0)

    async def claim_probe(self, provider: str, pause: float, longest: float) -> float:
        """Take each turn."""
        return 0.0

    async def free_probe(self, provider: str) -> None:
        """There is nobody to tell."""

    def lease_covers(self, seconds: float) -> bool:
        """As the test says."""
        self.asked.append(seconds)
        return self.lasts

    async def renew(self) -> None:
        """When the test allows it."""
        self.renewals += 1
        await self.renewable.wait()

    async def follow(self, _now: int, providers: Collection[str], *_: Any) -> FromOthers:
        """What the test says, each thing once."""
        self.followed.append((anyio.current_time(), tuple(providers)))
        news = self.news.popleft() if self.news else FromOthers()
        if isinstance(news, JournalError):
            raise news
        return news


@contextmanager
def shared() -> Iterator[list[SharedJournal]]:
    """Workers begun within the block have such a journal; it is in the list once it is open."""
    opened: list[SharedJournal] = []

    @asynccontextmanager
    async def open_shared(*arguments: Any, **options: Any) -> AsyncIterator[SharedJournal]:
        async with open_journal(*arguments, **options) as journal:
            opened.append(SharedJournal(journal))
            yield opened[-1]

    with patch.object(wiring, "open_journal", open_shared):
        yield opened
