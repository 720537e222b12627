"""Entity configurations by address: from the disk cache or from their host, with shared requests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio

from deliveryd.errors import ServiceError, ServiceUnreadable
from deliveryd.http.wire import WireResponse
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.service import exact_json

LONGEST_FRESHNESS = 10 * 365 * 86400.0

_DIRECTIVE = re.compile(r'([A-Za-z-]+)(?:\s*=\s*(?:"([^"]*)"|([^\s,;"]+)))?')


class Freshness(NamedTuple):
    """Whether an answer may be cached, and for how many seconds; None: not specified."""

    may_be_kept: bool
    seconds: float | None


def freshness(headers: Mapping[str, str]) -> Freshness:
    """Parse `Cache-Control` and `Age` as a private cache; unparsable values mean 0 s."""
    said = {
        match[1].lower(): match[2] or match[3] or ""
        for match in _DIRECTIVE.finditer(headers.get("cache-control", ""))
    }
    if "no-store" in said:
        return Freshness(may_be_kept=False, seconds=0.0)
    if "no-cache" in said:
        return Freshness(may_be_kept=True, seconds=0.0)
    if "max-age" not in said:
        return Freshness(may_be_kept=True, seconds=None)
    left = _seconds(said["max-age"]) - _seconds(headers.get("age", "0"))
    return Freshness(may_be_kept=True, seconds=max(left, 0.0))


def _seconds(text: str) -> float:
    text = text.strip()
    return min(float(text), LONGEST_FRESHNESS) if text.isascii() and text.isdigit() else 0.0


NOT_MODIFIED = 304

Fetch = Callable[[str, str | None], Awaitable[WireResponse]]
"""Fetches an address; with a copy's tag, the answer may be 304: the copy is still valid."""

_TAG = re.compile(r"[ -~\x80-\xff]{1,1024}")


class _Copy(NamedTuple):
    """A configuration, received `at` (Unix time), valid for `seconds`, with its host's tag."""

    at: float
    seconds: float
    tag: str | None
    body: bytes

    def is_fresh(self, now: float) -> bool:
        return 0 <= now - self.at < self.seconds  # a clock that was set back expires it

    def written(self) -> bytes:
        return json.dumps([self.at, self.seconds, self.tag]).encode() + b"\n" + self.body


def _read_copy(stored: bytes) -> _Copy | None:
    """Parse the result of `written`; return None for anything else."""
    head, _, body = stored.partition(b"\n")
    try:
        at, seconds, tag = json.loads(head)
        numbers = float(at), float(seconds)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None
    if tag is not None and not (isinstance(tag, str) and _TAG.fullmatch(tag)):
        return None
    return _Copy(*numbers, tag, body)


@dataclass(slots=True)
class _PendingFetch:
    """A request in progress, and its result for all waiters."""

    done: anyio.Event = field(default_factory=anyio.Event)
    body: bytes | None = None
    error: ServiceError | None = None


class Configurations:
    """Provides configurations. `ttl` is the lifetime in seconds, if the host sets none.

    Without a cache nothing is kept, and only concurrent requests are shared.
    """

    def __init__(
        self, fetch: Fetch, ttl: float, cache: DiskCache | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._fetch = fetch
        self._ttl = ttl
        self._cache = cache
        self._now = now
        self._requests: dict[str, _PendingFetch] = {}

    async def get(self, url: str) -> dict[str, Any]:
        """Return the `value` of the configuration at an address (interface 4.5), a copy for each caller.

        Raises ServiceError.
        """
        while request := self._requests.get(url):
            await request.done.wait()
            if request.error is not None:
                raise request.error
            if request.body is not None:  # otherwise its caller was cancelled
                return read_configuration(request.body)
        return read_configuration(await self._find_for_all(url))

    async def _find_for_all(self, url: str) -> bytes:
        request = self._requests[url] = _PendingFetch()
        try:
            request.body = body = await self._find(url)
        except ServiceError as error:
            request.error = error
            raise
        finally:
            del self._requests[url]
            request.done.set()
        return body

    async def _find(self, url: str) -> bytes:
        copy = await self._recall(url)
        if copy is not None and copy.is_fresh(self._now()):
            return copy.body
        answer = await self._fetch(url, copy.tag if copy is not None else None)
        if answer.status != NOT_MODIFIED:
            body = answer.body
        elif copy is not None:
            body = copy.body
        else:
            raise ServiceUnreadable("the host answered 304 to a request without a tag")
        read_configuration(body)
        await self._keep(url, answer, body, copy)
        return body

    async def _recall(self, url: str) -> _Copy | None:
        cached = await self._cache.get(_name(url)) if self._cache is not None else None
        copy = _read_copy(cached.value) if cached is not None else None
        try:
            if copy is not None:
                read_configuration(copy.body)
        except ServiceUnreadable:
            return None
        return copy

    async def _keep(self, url: str, answer: WireResponse, body: bytes, before: _Copy | None) -> None:
        if self._cache is None:
            return
        may_be_kept, seconds = freshness(answer.headers)
        if not may_be_kept:
            await self._cache.delete(_name(url))
            return
        tag = answer.headers.get("etag")
        if answer.status == NOT_MODIFIED and before is not None:  # a 304 may omit unchanged headers
            tag, seconds = tag or before.tag, before.seconds if seconds is None else seconds
        if tag is not None and not _TAG.fullmatch(tag):
            tag = None
        copy = _Copy(self._now(), self._ttl if seconds is None else seconds, tag, body)
        await self._cache.set(_name(url), copy.written())


def read_configuration(body: bytes) -> dict[str, Any]:
    """Return the `value` of a configuration (interface 4.5). Raises ServiceUnreadable."""
    parsed = exact_json.read_plain(body)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("value"), dict):
        raise ServiceUnreadable("an entity's configuration isn't an object with an object in `value`")
    value: dict[str, Any] = parsed["value"]
    return value


def _name(url: str) -> str:
    return f"entities/{url}"
