"""One client for every endpoint of the remote service (interface 4)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.wait import wait_exponential_jitter

from deliveryd.errors import ServiceRefused, ServiceUnavailable, ServiceUnreadable, WireError
from deliveryd.http.client import HttpClient, target_of
from deliveryd.http.patience import retry_after
from deliveryd.http.wire import Answer
from deliveryd.model import Settings
from deliveryd.service.auth import AuthOptions
from deliveryd.service.wire import (
    GROUPS,
    Batch,
    CustomerDataBody,
    read_customer_data,
    read_queue,
    read_settings,
)

TRIES = 3
PATIENCE = 5.0
"""Seconds between two tries of one call at most: who is told to wait longer hears ServiceUnavailable."""

LONGEST_WAIT = 86_400.0
"""Seconds that a service is believed when it asks to be left alone."""

WORTH_RETRYING = frozenset({408, 425, 429})

_backoff = wait_exponential_jitter(multiplier=0.1, max=2.0, jitter=0.1)


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.after if isinstance(error, ServiceUnavailable) else None
    return asked if asked is not None else _backoff(state)


def _is_brief(error: BaseException) -> bool:
    """Whether another try is worth it, and the service didn't ask for more than `PATIENCE` before it."""
    return isinstance(error, ServiceUnavailable) and (error.after or 0.0) <= PATIENCE


class ServiceClient:
    """Speaks with the service at `base_url`. Every call tries a few times what is worth trying again.

    All calls raise ServiceUnavailable (try later), ServiceRefused (the request itself is wrong) or
    ServiceUnreadable (the answer isn't what the interface describes).
    """

    def __init__(
        self,
        http: HttpClient,
        base_url: str,
        auth: AuthOptions | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._http = http
        self._base_url = base_url.rstrip("/")
        self._auth = auth or AuthOptions()
        self._headers = list(self._auth.headers())
        self._retrying = AsyncRetrying(
            stop=stop_after_attempt(TRIES),
            wait=_wait,
            retry=retry_if_exception(_is_brief),
            sleep=sleep,
            reraise=True,
        )

    async def take(self, count: int) -> Batch:
        """Take up to `count` messages from the queue (interface 4.1)."""
        answer = await self._call("GET", f"/queue?take={count}")
        return read_queue(answer.body)

    async def report(self, bodies: Sequence[str]) -> None:
        """Report status events, each given as its JSON text (interface 4.2)."""
        await self._call("POST", "/events", f"[{','.join(bodies)}]".encode())

    async def fetch_settings(self, settings_id: int) -> bytes:
        """Settings as the service wrote them (interface 4.3); `parse_settings` reads them."""
        answer = await self._call("GET", f"/settings/{settings_id}")
        return answer.body

    @staticmethod
    def parse_settings(settings_id: int, body: bytes) -> Settings:
        """Read what `fetch_settings` returned, now or from a cache. Raises ServiceUnreadable."""
        return read_settings(settings_id, body)

    async def customer_page(
        self,
        customer_id: int,
        include: Collection[str] = GROUPS,
        *,
        tokens: Mapping[str, str] | None = None,
        language: str | None = None,
    ) -> CustomerDataBody:
        """One page of each group of `include` (interface 4.4); `tokens` continue groups where a page ended.

        Raises ValueError for a group that the interface doesn't have.
        """
        asked = {*include, *(tokens or {})}
        if unknown := asked - set(GROUPS):
            raise ValueError(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
        query = [(f"{group}.include", "true") for group in GROUPS if group in asked]
        query += [(f"{group}.continuationToken", token) for group, token in (tokens or {}).items()]
        if language is not None:
            query.append(("language", language))
        answer = await self._call("GET", f"/customers/{customer_id}/all?{urlencode(query, quote_via=quote)}")
        return read_customer_data(answer.body)

    async def entity(self, config_url: str) -> Mapping[str, Any]:
        """The configuration of an entity (interface 4.5), from an address on the service's own host.

        Raises ServiceRefused for an address anywhere else: nothing is fetched from it.
        """
        try:
            elsewhere = target_of(config_url)[:3] != target_of(self._base_url)[:3]
        except ValueError:
            raise ServiceUnreadable("the configuration's address isn't one") from None
        if elsewhere:
            raise ServiceRefused("the configuration's address isn't on the service's own host", 0)
        answer = await self._request("GET", config_url, b"")
        try:
            value = json.loads(answer.body)["value"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ServiceUnreadable("an entity's configuration isn't an object with a `value`") from None
        if not isinstance(value, dict):
            raise ServiceUnreadable("an entity's `value` isn't an object")
        return value

    async def _call(self, method: str, path: str, body: bytes = b"") -> Answer:
        return await self._request(method, self._base_url + path, body)

    async def _request(self, method: str, url: str, body: bytes) -> Answer:
        async for attempt in self._retrying.copy():
            with attempt:
                return await self._try(method, url, body)
        raise AssertionError("tenacity ends by returning or raising")

    async def _try(self, method: str, url: str, body: bytes) -> Answer:
        shown = self._headers
        answer = await self._send(method, url, body)
        if answer.status == 401 and self._renew_credentials(shown):
            answer = await self._send(method, url, body)
        if answer.status in WORTH_RETRYING or answer.status >= 500:
            asked = retry_after(answer.headers.get("retry-after"), LONGEST_WAIT)
            raise ServiceUnavailable(f"the service answered {answer.status}", asked)
        if not 200 <= answer.status < 300:
            raise ServiceRefused(f"the service answered {answer.status}", answer.status)
        return answer

    async def _send(self, method: str, url: str, body: bytes) -> Answer:
        headers = [*self._headers, ("accept", "application/json")]
        if body:
            headers.append(("content-type", "application/json"))
        try:
            return await self._http.send(method, url, headers=headers, body=body)
        except WireError as error:
            raise ServiceUnavailable(str(error)) from None

    def _renew_credentials(self, shown: Sequence[tuple[str, str]]) -> bool:
        """Read the secrets' files again, since they may have been replaced; tell whether they have been.

        `shown` is what the service didn't accept; another call may have renewed it meanwhile.
        """
        try:
            self._headers = list(self._auth.headers())
        except ValueError:
            return False
        return self._headers != shown

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()
