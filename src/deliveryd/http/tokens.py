"""Credentials that end, such as tokens of a server: shared by all requests, and renewed before their end."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Generic, NamedTuple, TypeVar

import anyio

from deliveryd.errors import NotSent
from deliveryd.http.authentication import OutgoingRequest, secrets_in
from deliveryd.http.wire import Headers

RENEWED_AFTER = 0.75, 0.9
"""The share of its life after which a token is renewed: at random, so that workers don't do it at once."""

RENEWAL_PATIENCE = 2.0
"""Seconds for which a request waits for a new token while the old one is valid."""

FIRST_FAILURE_PAUSE, LONGEST_FAILURE_PAUSE = 1.0, 60.0
"""Seconds between requests to a token server that gives none; they double."""

REJECTED_EVERY = 60.0
"""Seconds within which a second token isn't had because a first one was rejected."""


T = TypeVar("T")


class Token(NamedTuple):
    """A token as a header shows it, and the seconds for which it is valid."""

    value: str
    lifetime: float

    def __repr__(self) -> str:
        return f"Token(lifetime={self.lifetime:g})"


class Lent(Generic[T]):
    """Credentials that end: the present ones, which `fetch` returns with their seconds, one at a time.

    `fetch` raises NotSent, with the reason, if it gets none. `without` names what didn't come in time.
    """

    def __init__(self, fetch: Callable[[], Awaitable[tuple[T, float]]], without: str) -> None:
        self._fetch = fetch
        self._without = without
        self._lock = anyio.Lock()
        self._present: T | None = None
        self._before: T | None = None
        self._ends = self._renewed_at = self._next_request = self._rejected_at = -inf
        self._is_rejected = False
        self._pause = FIRST_FAILURE_PAUSE
        self._failure = NotSent("no token came")

    async def present(self) -> T:
        """Return what is valid now. Raises NotSent.

        While a valid one is being renewed, only the request that found it old waits for that, and not long.
        """
        now = anyio.current_time()
        if self._present is not None and (
            now < self._renewed_at or (self._is_good(now) and self._must_not_ask(now))
        ):
            return self._present
        async with self._lock:
            now = anyio.current_time()
            if now >= max(self._renewed_at, self._next_request):
                with anyio.move_on_after(RENEWAL_PATIENCE if self._is_good(now) else inf):
                    await self._renew()
                self._is_rejected = False
            if self._present is not None and anyio.current_time() < self._ends:
                return self._present
        raise self._failure.with_traceback(None)

    def _is_good(self, now: float) -> bool:
        return now < self._ends and not self._is_rejected

    def _must_not_ask(self, now: float) -> bool:
        return self._lock.locked() or now < self._next_request

    async def _renew(self) -> None:
        began, pause = anyio.current_time(), self._pause * random.uniform(0.8, 1.2)
        self._failure = NotSent(f"{self._without} in time")  # if this is cancelled
        self._next_request = began + pause
        self._pause = min(self._pause * 2, LONGEST_FAILURE_PAUSE)
        try:
            fetched, lifetime = await self._fetch()
        except NotSent as error:
            self._failure, self._next_request = error, anyio.current_time() + pause
            return
        if began + lifetime <= anyio.current_time():
            self._failure = NotSent("the token had ended when it came")
            return
        self._before, self._present = self._present, fetched
        self._ends = began + lifetime
        self._renewed_at = began + lifetime * random.uniform(*RENEWED_AFTER)
        self._next_request, self._pause = -inf, FIRST_FAILURE_PAUSE

    def reject(self, shown: T | None) -> bool:
        """Have rejected ones replaced, unless others were a moment ago; return whether there may be others.

        A server that rejects all would have new ones requested for each request otherwise. While there are
        none, the rejected ones are used on: they may be good for other requests.
        """
        now = anyio.current_time()
        if self._present != shown:
            return True
        if self._is_rejected:  # another request has done so already
            return self._lock.locked() or now >= self._next_request
        if now < max(self._rejected_at + REJECTED_EVERY, self._next_request):
            return False
        self._rejected_at, self._is_rejected = now, True
        self._renewed_at = -inf
        return True

    def known(self) -> Iterable[T]:
        """Return the present ones, and those before them."""
        return [each for each in (self._present, self._before) if each is not None]


class Tokens:
    """Authenticates requests by the bearer tokens that `fetch` returns, as `Lent` has it."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Token]],
        close: Callable[[], Awaitable[None]],
        without: str = "the token server gave no token",
    ) -> None:
        async def headers_and_lifetime() -> tuple[Headers, float]:
            token = await fetch()
            return [(b"authorization", b"Bearer " + token.value.encode("ascii"))], token.lifetime

        self._lent = Lent(headers_and_lifetime, without)
        self._close = close

    async def headers(self, _request: OutgoingRequest) -> Headers:
        """Return the header of the present token."""
        return await self._lent.present()

    async def renew(self, shown: Headers) -> bool:
        """Have a rejected token replaced."""
        return self._lent.reject(shown)

    def secrets(self) -> Iterable[str]:
        """Return the token, and the one before it."""
        return [secret for headers in self._lent.known() for secret in secrets_in(headers)]

    async def aclose(self) -> None:
        """Close the connections to the token server."""
        await self._close()
