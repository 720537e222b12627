"""Fetches what verification needs from a provider's own host.

Anybody can provoke it. So fetches have a rate, and what can't be had isn't asked for again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import anyio

from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http.client import build_client

FETCHES_AT_ONCE = 10
"""Fetches that may follow each other at once."""

FETCH_INTERVAL = 10.0
"""Seconds after which one more is allowed."""

MISSING_FOR = 300.0
"""Seconds for which an address that gave nothing isn't asked again."""

MOST_MISSING = 100
"""Addresses that are remembered as giving nothing."""

MOST_WAITING = 20
"""Requests that wait for a page at most; further ones are to come again, so that they hold no connections."""

_TIMEOUT = 8.0
_LARGEST = 64 << 10


class PageSource(Protocol):
    """Where pages come from."""

    async def fetch(self, url: str) -> bytes | None:
        """Return what is at an address; None: it can't be had now."""


class ProviderHosts:
    """The providers' own hosts."""

    async def fetch(self, url: str) -> bytes | None:
        """Return what is at an address; None: it can't be had now."""
        client = build_client(timeout=_TIMEOUT, max_body=_LARGEST)
        try:
            answer = await client.send("GET", url)
        except (NotSent, OutcomeUnknown, ValueError):
            return None
        finally:
            await client.aclose()
        return answer.body if answer.status == 200 else None


class Pages:
    """Pages that the requests of one provider need, fetched one at a time and at a bounded rate."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._one = anyio.Lock()
        self._allowed = float(FETCHES_AT_ONCE)
        self._counted_at = 0.0
        self._missing: OrderedDict[str, float] = OrderedDict()

    async def get(self, url: str, is_needed: Callable[[], bool]) -> bytes | None:
        """Return a page, or None. `is_needed` tells whether it still is when those before it are done."""
        if self._is_missing(url) or self._one.statistics().tasks_waiting >= MOST_WAITING:
            return None
        async with self._one:
            if not is_needed() or self._is_missing(url) or not self._take():
                return None
            page = await self._source.fetch(url)
            if page is None:
                self._note_missing(url)
            return page

    def note_useless(self, url: str) -> None:
        """What was at this address is of no use: don't ask for it again at once."""
        self._note_missing(url)

    def _take(self) -> bool:
        """Whether one more fetch is within the rate."""
        now = anyio.current_time()
        self._allowed = min(FETCHES_AT_ONCE, self._allowed + (now - self._counted_at) / FETCH_INTERVAL)
        self._counted_at = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def _is_missing(self, url: str) -> bool:
        return self._missing.get(url, float("-inf")) > anyio.current_time()

    def _note_missing(self, url: str) -> None:
        self._missing[url] = anyio.current_time() + MISSING_FOR
        while len(self._missing) > MOST_MISSING:
            self._missing.popitem(last=False)
