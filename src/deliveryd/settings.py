"""Settings by id: from memory, else from the disk cache, else from the service, once however many ask."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from deliveryd.cache import DiskCache
from deliveryd.errors import ServiceRefused, ServiceUnavailable, ServiceUnreadable, SettingsUnusable
from deliveryd.metrics import Metrics
from deliveryd.model import Settings, first_of
from deliveryd.rendering.content import CompiledSettings
from deliveryd.telemetry import Event, log

MEMORY_BYTES = 32 << 20
PIECE_BYTES = 128
"""Memory that one piece of a template takes besides its text, about."""

MOST_FETCHES = 100
"""Settings that are asked for at a time: each takes a connection, and a process has a thousand files."""

UNUSABLE_SECONDS = 30.0
"""How long it is remembered that an id has no usable settings: a correction is noticed after that."""

FLAWED_SECONDS = 600.0
"""How long settings are kept of which some blocks can't be read: a correction is noticed after that."""

MAX_PAUSE = 60.0
MOST_KNOWN = 100_000

ABOUT_THE_SETTINGS = frozenset({400, 404, 410, 422})
"""Refusals that mean that there are no such settings; any other, such as 401, is about who asks and how."""


class SettingsSource(Protocol):
    """What the settings come from."""

    async def fetch_settings(self, settings_id: int) -> bytes:
        """The settings as they were written."""

    def parse_settings(self, settings_id: int, body: bytes) -> Settings:
        """Read what was fetched."""


@dataclass(frozen=True, slots=True)
class _Usable:
    """The settings of an id, until `until` (None: for good)."""

    until: float | None
    compiled: CompiledSettings
    size: int

    def answer(self) -> CompiledSettings:
        return self.compiled


@dataclass(frozen=True, slots=True)
class _Unusable:
    """Why an id has no usable settings."""

    until: float
    reason: str
    size: int = 0

    def answer(self) -> SettingsUnusable:
        return SettingsUnusable(self.reason)


@dataclass(frozen=True, slots=True)
class _Unavailable:
    """Why the settings of an id can't be had before `until`, and how many failures in a row that makes."""

    until: float
    reason: str
    failures: int
    size: int = 0

    def answer(self) -> ServiceUnavailable:
        return ServiceUnavailable(self.reason, max(self.until - anyio.current_time(), 0.0))


_Known = _Usable | _Unusable | _Unavailable


@dataclass(slots=True)
class _Fetch:
    """A request under way, and those who wait for it."""

    done: anyio.Event = field(default_factory=anyio.Event)


class SettingsRoom:
    """Hands out compiled settings. `ttl` (seconds) is the age to fetch them anew at, None: never."""

    def __init__(
        self,
        source: SettingsSource,
        cache: DiskCache,
        compile_settings: Callable[[Settings], CompiledSettings],
        metrics: Metrics,
        ttl: float | None = None,
    ) -> None:
        self._source = source
        self._cache = cache
        self._compile = compile_settings
        self._metrics = metrics
        self._ttl = ttl
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._size = 0
        self._fetches: dict[int, _Fetch] = {}
        self._at_a_time = anyio.CapacityLimiter(MOST_FETCHES)

    def at_hand(self, settings_id: int) -> CompiledSettings | SettingsUnusable | ServiceUnavailable | None:
        """The settings of an id, or why there are none, if that is in memory; None: only `get` can say."""
        known = None if settings_id in self._fetches else self._recall(settings_id)
        if isinstance(known, _Usable):
            self._metrics.settings_cached("memory")
        return None if known is None else known.answer()

    async def get(self, settings_id: int) -> CompiledSettings:
        """The settings of an id.

        Raises SettingsUnusable when they don't exist or can't be read, and ServiceUnavailable when the
        service can't say; its `after` are the seconds until the next request for this id.
        """
        while fetch := self._fetches.get(settings_id):
            await fetch.done.wait()
        known = self._recall(settings_id)
        if known is None:
            known = await self._find_for_all(settings_id)
        elif isinstance(known, _Usable):
            self._metrics.settings_cached("memory")
        answer = known.answer()
        if isinstance(answer, CompiledSettings):
            return answer
        raise answer

    async def _find_for_all(self, settings_id: int) -> _Known:
        fetch = self._fetches[settings_id] = _Fetch()
        try:
            known = await self._find(settings_id)
            self._put(settings_id, known)
        finally:
            del self._fetches[settings_id]
            fetch.done.set()
        return known

    def _recall(self, settings_id: int) -> _Known | None:
        known = self._known.get(settings_id)
        if known is None or (known.until is not None and known.until <= anyio.current_time()):
            return None
        self._known.move_to_end(settings_id)
        return known

    async def _find(self, settings_id: int) -> _Known:
        name = f"settings/{settings_id}"
        cached = await self._cache.get(name)
        if cached is not None:
            try:
                compiled = self._read(settings_id, cached.value)
            except SettingsUnusable:
                log(Event.CACHE_ROW_REFUSED, settings_id=settings_id)
                await self._cache.delete(name)
            else:
                self._metrics.settings_cached("disk")
                return self._usable(compiled, len(cached.value), self._shorter(cached.seconds_left))
        try:
            async with self._at_a_time:
                body = await self._source.fetch_settings(settings_id)
            compiled = self._read(settings_id, body)
        except ServiceUnavailable as error:
            return self._unavailable(settings_id, error)
        except ServiceRefused as error:
            if error.status in ABOUT_THE_SETTINGS:
                return self._unusable(settings_id, f"settings {settings_id}: {error}")
            return self._unavailable(settings_id, ServiceUnavailable(str(error)))
        except SettingsUnusable as error:
            return self._unusable(settings_id, str(error))
        self._metrics.settings_requested("found")
        log(Event.SETTINGS_FETCHED, settings_id=settings_id, size=len(body))
        ttl = self._ttl
        if compiled.unreadable:
            ttl = self._shorter(FLAWED_SECONDS)
            log(
                Event.SETTINGS_FLAWED,
                settings_id=settings_id,
                reason="; ".join(first_of(compiled.unreadable)),
            )
        known = self._usable(compiled, len(body), ttl)
        await self._cache.set(name, body, ttl)
        return known

    def _read(self, settings_id: int, body: bytes) -> CompiledSettings:
        try:
            return self._compile(self._source.parse_settings(settings_id, body))
        except ServiceUnreadable as error:
            raise SettingsUnusable(str(error)) from None

    def _shorter(self, seconds_left: float | None) -> float | None:
        """Of this time, such as what is left of an earlier run's `ttl`, and today's: what ends first."""
        limits = [limit for limit in (seconds_left, self._ttl) if limit is not None]
        return min(limits, default=None)

    def _usable(self, compiled: CompiledSettings, size: int, seconds: float | None) -> _Usable:
        until = None if seconds is None else anyio.current_time() + seconds
        return _Usable(until, compiled, size + PIECE_BYTES * compiled.pieces)

    def _unusable(self, settings_id: int, reason: str) -> _Unusable:
        self._metrics.settings_requested("unusable")
        log(Event.SETTINGS_UNUSABLE, settings_id=settings_id, reason=reason)
        return _Unusable(anyio.current_time() + UNUSABLE_SECONDS, reason)

    def _unavailable(self, settings_id: int, error: ServiceUnavailable) -> _Unavailable:
        before = self._known.get(settings_id)
        failures = before.failures + 1 if isinstance(before, _Unavailable) else 1
        grown = min(2.0 ** min(failures - 1, 10), MAX_PAUSE) * random.uniform(0.7, 1.0)
        pause = max(error.after or 0.0, grown)
        self._metrics.settings_requested("unavailable")
        log(Event.SETTINGS_UNAVAILABLE, settings_id=settings_id, reason=str(error), delay=pause)
        return _Unavailable(anyio.current_time() + pause, str(error), failures)

    def _put(self, settings_id: int, known: _Known) -> None:
        before = self._known.pop(settings_id, None)
        self._size += known.size - (before.size if before is not None else 0)
        self._known[settings_id] = known
        while (self._size > MEMORY_BYTES and len(self._known) > 1) or len(self._known) > MOST_KNOWN:
            _, oldest = self._known.popitem(last=False)
            self._size -= oldest.size
