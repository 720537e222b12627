"""Settings by id: from memory, else from the disk cache, else from the service, one request however many ask."""

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
from deliveryd.model import Settings
from deliveryd.rendering.content import CompiledSettings
from deliveryd.telemetry import Event, log

MEMORY_BYTES = 32 << 20
UNUSABLE_SECONDS = 30.0
"""How long it is remembered that an id has no usable settings: a correction is noticed after that."""

MAX_PAUSE = 60.0


class SettingsSource(Protocol):
    """What the settings come from."""

    async def fetch_settings(self, settings_id: int) -> bytes:
        """The settings as they were written."""

    def parse_settings(self, settings_id: int, body: bytes) -> Settings:
        """Read what was fetched."""


@dataclass(slots=True)
class _Known:
    """What is known of an id until `until` (None: for good): compiled settings, or why there are none."""

    until: float | None
    result: CompiledSettings | SettingsUnusable | ServiceUnavailable
    size: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Fetch:
    """A request under way, and those who wait for it."""

    done: anyio.Event = field(default_factory=anyio.Event)


class SettingsRoom:
    """Hands out compiled settings. `ttl` (seconds) is the age at which they are asked for again, None: never."""

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

    async def get(self, settings_id: int) -> CompiledSettings:
        """The settings of an id.

        Raises SettingsUnusable when they don't exist or can't be read, and ServiceUnavailable, with the seconds
        until the next request for this id, when the service can't say.
        """
        while True:
            known = self._recall(settings_id)
            if known is not None:
                if isinstance(known.result, Exception):
                    raise known.result
                return known.result
            fetch = self._fetches.get(settings_id)
            if fetch is not None:
                await fetch.done.wait()
                continue
            fetch = self._fetches[settings_id] = _Fetch()
            try:
                await self._find(settings_id)
            finally:
                del self._fetches[settings_id]
                fetch.done.set()

    def _recall(self, settings_id: int) -> _Known | None:
        known = self._known.get(settings_id)
        if known is None or (known.until is not None and known.until <= anyio.current_time()):
            return None
        self._known.move_to_end(settings_id)
        return known

    async def _find(self, settings_id: int) -> None:
        name = f"settings/{settings_id}"
        body = await self._cache.get(name)
        if body is not None:
            try:
                self._remember(settings_id, self._read(settings_id, body), len(body))
            except SettingsUnusable:
                log(Event.CACHE_ROW_REFUSED, settings_id=settings_id)
                await self._cache.delete(name)
            else:
                self._metrics.settings_cached("disk")
                return
        try:
            body = await self._source.fetch_settings(settings_id)
            compiled = self._read(settings_id, body)
        except ServiceUnavailable as error:
            self._postpone(settings_id, error)
        except ServiceRefused as error:
            if error.status in (404, 410, 400, 422):
                self._reject(settings_id, SettingsUnusable(f"settings {settings_id}: {error}"))
            else:  # not about these settings: credentials, a wrong base_url
                self._postpone(settings_id, ServiceUnavailable(str(error)))
        except SettingsUnusable as error:
            self._reject(settings_id, error)
        else:
            self._remember(settings_id, compiled, len(body))
            await self._cache.set(name, body, self._ttl)
            self._metrics.settings_requested("found")
            log(Event.SETTINGS_FETCHED, settings_id=settings_id, size=len(body))

    def _read(self, settings_id: int, body: bytes) -> CompiledSettings:
        try:
            return self._compile(self._source.parse_settings(settings_id, body))
        except ServiceUnreadable as error:
            raise SettingsUnusable(str(error)) from None

    def _remember(self, settings_id: int, compiled: CompiledSettings, size: int) -> None:
        until = None if self._ttl is None else anyio.current_time() + self._ttl
        self._put(settings_id, _Known(until, compiled, size))

    def _reject(self, settings_id: int, error: SettingsUnusable) -> None:
        self._metrics.settings_requested("unusable")
        log(Event.SETTINGS_UNUSABLE, settings_id=settings_id, reason=str(error))
        self._put(settings_id, _Known(anyio.current_time() + UNUSABLE_SECONDS, error))

    def _postpone(self, settings_id: int, error: ServiceUnavailable) -> None:
        before = self._known.get(settings_id)
        failures = before.failures + 1 if before is not None else 1
        grown = min(2.0 ** (failures - 1), MAX_PAUSE) * random.uniform(0.7, 1.0)
        pause = max(error.after or 0.0, grown)
        self._metrics.settings_requested("unavailable")
        log(Event.SETTINGS_UNAVAILABLE, settings_id=settings_id, reason=str(error), delay=pause)
        later = ServiceUnavailable(str(error), pause)
        self._put(settings_id, _Known(anyio.current_time() + pause, later, failures=failures))

    def _put(self, settings_id: int, known: _Known) -> None:
        before = self._known.pop(settings_id, None)
        self._size += known.size - (before.size if before is not None else 0)
        self._known[settings_id] = known
        while self._size > MEMORY_BYTES and len(self._known) > 1 or len(self._known) > 100_000:
            _, oldest = self._known.popitem(last=False)
            self._size -= oldest.size
