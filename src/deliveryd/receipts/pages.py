"""Fetches what verification needs from a provider's own host.

Anybody can provoke it. So fetches have a rate for each peer, and what can't be had isn't asked for again.
Made-up addresses use up the rate of their own peer, and a genuine request of another one gets its page.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio

from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http.client import build_client

FETCHES_AT_ONCE = 10
"""Fetches for one peer that may follow each other at once."""

FETCH_INTERVAL = 10.0
"""Seconds after which one more is allowed."""

MISSING_FOR = 300.0
"""Seconds for which an address that gave nothing isn't asked again."""

MOST_MISSING = 100
"""Addresses that are remembered as giving nothing."""

MOST_ASKING = 1000
"""Peers whose fetches are counted: those that were last allowed one."""

MOST_WAITING = 20
"""Requests that wait for a page at most; further ones are to come again, so that they hold no connections."""

_TIMEOUT = 8.0
_LARGEST = 64 << 10


FetchPage = Callable[[str], Awaitable[bytes | None]]
"""Returns what is at an address; None: it can't be had now."""


async def fetch_page(url: str) -> bytes | None:
    """Fetch what is at an address of a provider's own host."""
    client = build_client(timeout=_TIMEOUT, max_body=_LARGEST)
    try:
        answer = await client.send("GET", url)
    except (NotSent, OutcomeUnknown, ValueError):
        return None
    finally:
        await client.aclose()
    return answer.body if answer.status == 200 else None


class _Allowance(NamedTuple):
    """How many fetches a peer was allowed, and when that was counted."""

    fetches: float
    at: float


class Pages:
    """Pages that the requests of one provider need, fetched one at a time, at a rate for each peer."""

    def __init__(self, fetch: FetchPage) -> None:
        self._fetch = fetch
        self._one = anyio.Lock()
        self._allowed: OrderedDict[str | None, _Allowance] = OrderedDict()
        self._missing: OrderedDict[str, float] = OrderedDict()

    async def get(self, url: str, is_needed: Callable[[], bool], peer: str | None) -> bytes | None:
        """Return a page, or None. `is_needed` is whether it still is when those before it are done."""
        if self._is_missing(url) or self._allowance(peer) < 1:
            return None
        if self._one.statistics().tasks_waiting >= MOST_WAITING:
            return None
        async with self._one:
            if not is_needed() or self._is_missing(url) or not self._take(peer):
                return None
            page = await self._fetch(url)
            if page is None:
                self.note_missing(url)
            return page

    def note_missing(self, url: str) -> None:
        """There is nothing of use at this address: don't ask for it again at once."""
        self._missing[url] = anyio.current_time() + MISSING_FOR
        while len(self._missing) > MOST_MISSING:
            self._missing.popitem(last=False)

    def _take(self, peer: str | None) -> bool:
        """Whether one more fetch is within the rate of a peer, and count it."""
        if (allowance := self._allowance(peer)) < 1:
            return False
        self._allowed[peer] = _Allowance(allowance - 1, anyio.current_time())
        self._allowed.move_to_end(peer)
        if len(self._allowed) > MOST_ASKING:
            self._allowed.popitem(last=False)
        return True

    def _allowance(self, peer: str | None) -> float:
        counted = self._allowed.get(peer)
        if counted is None:
            return float(FETCHES_AT_ONCE)
        return min(FETCHES_AT_ONCE, counted.fetches + (anyio.current_time() - counted.at) / FETCH_INTERVAL)

    def _is_missing(self, url: str) -> bool:
        return self._missing.get(url, float("-inf")) > anyio.current_time()
