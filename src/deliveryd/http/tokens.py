"""Bearer tokens that end: had from a server, shared by all requests, and renewed before their end."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from math import inf
from typing import NamedTuple

import anyio

from deliveryd.errors import NotSent
from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.wire import Headers

RENEWED_AFTER = 0.75, 0.9
"""The share of its life after which a token is renewed: at random, so that workers don't do it at once."""

FIRST_FAILURE_PAUSE, LONGEST_FAILURE_PAUSE = 1.0, 60.0
"""Seconds between requests to a token server that gives none; they double."""

REJECTED_EVERY = 60.0
"""Seconds within which a second token isn't had because a first one was rejected."""


class Token(NamedTuple):
    """A token as a header shows it, and the seconds for which it is valid."""

    value: str
    lifetime: float


class Tokens:
    """Authenticates requests by the tokens that `fetch` returns, one at a time.

    `fetch` raises NotSent, with the reason, if it gets none.
    """

    def __init__(self, fetch: Callable[[], Awaitable[Token]], close: Callable[[], Awaitable[None]]) -> None:
        self._fetch = fetch
        self._close = close
        self._lock = anyio.Lock()
        self._headers: Headers = ()
        self._ends = self._renewed_at = self._next_request = -inf
        self._rejected_at = -inf
        self._pause = FIRST_FAILURE_PAUSE
        self._failure: str | None = None

    async def headers(self, _request: OutgoingRequest) -> Headers:
        """Return the header of the present token.

        While a valid one is being renewed, only the request that found it old waits for that.
        """
        now = anyio.current_time()
        if now < self._renewed_at or (now < self._ends and self._must_not_ask(now)):
            return self._headers
        async with self._lock:
            now = anyio.current_time()
            if now >= self._renewed_at and now >= self._next_request:
                await self._renew()
            if anyio.current_time() < self._ends:
                return self._headers
        raise NotSent(self._failure or "the token was no longer valid when it came")

    def _must_not_ask(self, now: float) -> bool:
        return self._lock.locked() or now < self._next_request

    async def _renew(self) -> None:
        began = anyio.current_time()
        try:
            token = await self._fetch()
        except NotSent as error:
            self._failure = str(error)
            self._next_request = anyio.current_time() + self._pause * random.uniform(0.8, 1.2)
            self._pause = min(self._pause * 2, LONGEST_FAILURE_PAUSE)
            return
        self._headers = [(b"authorization", b"Bearer " + token.value.encode("ascii"))]
        self._ends = began + token.lifetime
        self._renewed_at = began + token.lifetime * random.uniform(*RENEWED_AFTER)
        self._pause, self._failure = FIRST_FAILURE_PAUSE, None

    async def renew(self, shown: Headers) -> bool:
        """Give a rejected token up, unless it took the place of one that was rejected a moment ago.

        A server that rejects every token would have one requested for each request otherwise.
        """
        if self._headers != shown or self._ends == -inf:  # another request has done so already
            return True
        now = anyio.current_time()
        if now < self._rejected_at + REJECTED_EVERY:
            return False
        self._rejected_at = now
        self._ends = self._renewed_at = -inf
        return True

    async def aclose(self) -> None:
        """Close the connections to the token server."""
        await self._close()
