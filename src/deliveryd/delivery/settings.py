"""Settings by id: from memory, the disk cache or the service, with one request for all messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

import anyio

from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.settings_memory import (
    MOST_KNOWN,
    KnownSettings,
    SettingsMemory,
    UnavailableSettings,
    UnusableSettings,
    UsableSettings,
)
from deliveryd.delivery.settings_requests import OpenRequest, RequestSlot, RequestSlots
from deliveryd.errors import (
    ServiceError,
    ServiceRefused,
    ServiceUnavailable,
    ServiceUnreadable,
    SettingsUnusable,
)
from deliveryd.metrics import Metrics
from deliveryd.model import Settings, first_of
from deliveryd.rendering.content import CompiledSettings
from deliveryd.runtime import waits
from deliveryd.runtime.breaker import backoff
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.runtime.threads import Aside
from deliveryd.runtime.waits import KEPT_FOR_WAITING, LONGEST_ANSWER_WAIT, PROMPT
from deliveryd.runtime.wakeup import AutoResetEvent
from deliveryd.service.client import NO_SETTINGS
from deliveryd.telemetry.log_events import Event, log

PIECE_BYTES = 128
"""Memory that one piece of a template takes besides its text, about."""

MOST_FETCHES = 200
"""Settings that are asked for at a time: each takes a connection, and a process has a thousand files."""

FORGOTTEN_AFTER = 2 * LONGEST_ANSWER_WAIT
"""Seconds after which an id isn't asked for any more that no message has begun to wait for since."""

NO_ANSWER_YET = "the service hasn't answered yet"
GAVE_WAY = "its request took long, and gave way to those of other ids"

UNUSABLE_SECONDS = 30.0
"""How long it is remembered that an id has no usable settings: a correction is noticed after that."""

FLAWED_SECONDS = 600.0
"""How long settings are kept of which some blocks can't be read: a correction is noticed after that."""

LONGEST_SETTINGS_PAUSE = 60.0


class SettingsSource(Protocol):
    """What the settings come from."""

    async def fetch_settings(self, settings_id: int) -> bytes:
        """The settings as they were written. Raises ServiceError; ServiceUnreadable: they can't be used."""

    def parse_settings(self, settings_id: int, body: bytes) -> Settings:
        """Read what was fetched."""


class SettingsCache:
    """Hands out compiled settings. `ttl` (seconds) is the age to fetch them again at, None: never.

    While they can't be fetched, those of before are used for this many more seconds, `stale_while_down`.
    `run` requests what is wanted, and repeats that for as long as messages wait for it in the journal.
    """

    def __init__(
        self,
        source: SettingsSource,
        cache: DiskCache,
        compile_settings: Callable[[Settings], CompiledSettings],
        metrics: Metrics,
        backlog: Backlog,
        *,
        ttl: float | None = None,
        stale_while_down: float = 86400.0,
    ) -> None:
        self._source = source
        self._cache = cache
        self._compile = compile_settings
        self._metrics = metrics
        self._backlog = backlog
        self._ttl = ttl
        self._stale_while_down = stale_while_down
        self._aside = Aside()
        self._is_down = False  # whether the latest request brought no answer
        self._uses_old = False  # whether old copies are used, since it is down
        self._known = SettingsMemory()
        self._open: dict[int, OpenRequest] = {}
        self._begun: list[int] = []
        self._slots = RequestSlots(MOST_FETCHES)
        self._repeats: list[tuple[float, int]] = []  # a heap
        self._left_alone: dict[int, tuple[float, float]] = {}  # when it failed, and its own pause's end
        self._wakeup = AutoResetEvent()

    def adopt(
        self,
        compile_settings: Callable[[Settings], CompiledSettings] | None,
        ttl: float | None,
        stale_while_down: float,
    ) -> None:
        """Keep settings for other times from now on, and compile them by other options (None: the same).

        The copies in memory are by what was before: they are read from the disk again, which has their ages.
        """
        self._stale_while_down = stale_while_down
        if compile_settings is None and ttl == self._ttl:
            return
        self._compile, self._ttl = compile_settings or self._compile, ttl
        for settings_id in self._known:
            if self._known.copy_of(settings_id) is not None:
                self._known.drop(settings_id)

    def ask_again(self) -> None:
        """Request at once what the service couldn't give, or had none of: it is another one."""
        for settings_id in self._known:
            if not isinstance(self._known.get(settings_id), UsableSettings):
                copy = self._known.copy_of(settings_id)
                self._known.drop(settings_id)
                if copy is not None:
                    self._known.put(settings_id, copy)
        self._left_alone.clear()
        for settings_id, wanted in self._open.items():
            if wanted.repeat_at is not None:
                self._repeat_at(settings_id, wanted, anyio.current_time())

    def forget(self, settings_id: int | None) -> int:
        """Look settings up again when they are next needed (None: all); return how many were known."""
        chosen = list(self._known) if settings_id is None else [settings_id]
        known = [each for each in chosen if self._known.forget(each)]
        return len(known)

    def at_hand(self, settings_id: int) -> CompiledSettings | SettingsUnusable | ServiceUnavailable | None:
        """The settings of an id, or why there are none, if that is known; None: `ask` can find out.

        With ServiceUnavailable a message has to wait in the journal; it goes on when the settings are known.
        """
        known = self._known.current(settings_id)
        if isinstance(known, UsableSettings):
            self._metrics.settings_hits.add("memory")
            return known.compiled
        if isinstance(known, UnusableSettings):
            return known.answer()
        if (old := self._old_copy(settings_id)) is not None:
            return self._use_old(settings_id, old)
        if known is None and self._is_prompt(settings_id):
            return None
        self._wait_for(settings_id)
        return known.answer() if known is not None else ServiceUnavailable(NO_ANSWER_YET)

    async def ask(self, settings_id: int) -> CompiledSettings | SettingsUnusable | ServiceUnavailable:
        """The same with a request where it needs one, whose answer is waited for a moment only."""
        with anyio.move_on_after(PROMPT):
            try:
                return await self.get(settings_id)
            except SettingsUnusable as error:
                return error
            except ServiceUnavailable as error:
                self._wait_for(settings_id)
                return error
        known = self._known.current(
            settings_id
        )  # the answer may have come in the very moment that was waited for
        if known is not None and not isinstance(known, UnavailableSettings):
            return known.answer()
        if (old := self._old_copy(settings_id)) is not None:
            return self._use_old(settings_id, old)
        self._wait_for(settings_id)
        return ServiceUnavailable(NO_ANSWER_YET)

    async def get(self, settings_id: int) -> CompiledSettings:
        """The settings of an id, however long the request takes.

        Raises SettingsUnusable when they don't exist or can't be read, and ServiceUnavailable when the
        service can't answer; its `after` are the seconds until the next request for this id.
        """
        known, wanted = self._known.current(settings_id), self._open.get(settings_id)
        is_first = known is None and wanted is None
        if known is None:
            known = await (wanted or self._begin(settings_id)).result()
        if isinstance(known, UsableSettings) and not is_first:
            self._metrics.settings_hits.add("memory")
        if isinstance(known, UnavailableSettings) and (old := self._old_copy(settings_id)) is not None:
            return self._use_old(settings_id, old)
        answer = known.answer()
        if isinstance(answer, CompiledSettings):
            return answer
        raise answer

    def is_awaited(self, settings_id: int) -> bool:
        """Whether messages that wait for the settings of this id go on when they are known."""
        wanted = self._open.get(settings_id)
        return wanted is not None and wanted.waited_for is not None

    async def run(self) -> None:
        """Request what is wanted until cancelled; messages that wait for an answer then go on."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self._wakeup.wait(self._pause())
                begun, self._begun = self._begun, []
                for settings_id in begun:
                    tasks.start_soon(self._look_up, settings_id)
                self._repeat_due()
                for slot in self._slots.begin():
                    tasks.start_soon(self._request, slot)

    def _old_copy(self, settings_id: int) -> UsableSettings | None:
        """The old copy of an id, where it is used all the same: they can't be had, or it was waited for."""
        copy, now = self._known.copy_of(settings_id), anyio.current_time()
        if copy is None or copy.until is None:
            return None
        can_be_had = not self._is_down and self._known.get(settings_id) is copy
        if now < copy.found_until or (not can_be_had and now < copy.until + self._stale_while_down):
            return copy
        return None

    def _use_old(self, settings_id: int, old: UsableSettings) -> CompiledSettings:
        """Have current settings requested, unless a pause lasts, and use the old ones meanwhile."""
        if self._known.current(settings_id) is None and settings_id not in self._open:
            self._open[settings_id] = OpenRequest(anyio.current_time())
            self._have_requested(settings_id)
        if self._is_down and not self._uses_old:
            self._uses_old = True
            log(Event.SETTINGS_OLD, settings_id=settings_id, seconds=self._stale_while_down)
        self._known.use(settings_id)
        self._metrics.settings_hits.add("old")
        return old.compiled

    def _is_prompt(self, settings_id: int) -> bool:
        """Whether an answer may come within a moment: no message has waited for long, or in the journal."""
        wanted = self._open.get(settings_id)
        return wanted is None or (wanted.waited_for is None and anyio.current_time() - wanted.since < PROMPT)

    def _begin(self, settings_id: int) -> OpenRequest:
        wanted = self._open[settings_id] = OpenRequest(anyio.current_time())
        self._begun.append(settings_id)
        self._wakeup.set()
        return wanted

    def _wait_for(self, settings_id: int) -> None:
        """A message is going to wait for this id in the journal."""
        wanted = self._open.get(settings_id)
        if wanted is None:
            if len(self._open) >= MOST_KNOWN:
                return
            wanted = self._open[settings_id] = OpenRequest(anyio.current_time())
            known = self._known.get(settings_id)
            self._repeat_at(
                settings_id, wanted, known.until if isinstance(known, UnavailableSettings) else wanted.since
            )
        wanted.wait()

    def _repeat_at(self, settings_id: int, wanted: OpenRequest, at: float) -> None:
        wanted.repeat(at)
        heappush(self._repeats, (at, settings_id))
        self._wakeup.set()

    def _pause(self) -> float:
        """Seconds until something is to be done."""
        pauses = [math.inf]
        if self._repeats:
            pauses.append(max(self._repeats[0][0] - anyio.current_time(), 0.0))
        if (wait := self._slots.wait()) is not None:
            pauses.append(wait)
        return min(pauses)

    def _repeat_due(self) -> None:
        """Let those be asked for again whose pause is over, if messages still wait for them."""
        now = anyio.current_time()
        while self._repeats and self._repeats[0][0] <= now:
            _, settings_id = heappop(self._repeats)
            wanted = self._open.get(settings_id)
            if wanted is None or wanted.repeat_at is None or wanted.repeat_at > now:
                continue
            if wanted.waited_for is None or now - wanted.waited_for > FORGOTTEN_AFTER:
                del self._open[settings_id]
            else:
                wanted.repeat(None)
                self._slots.add_repeat(settings_id)

    async def _look_up(self, settings_id: int) -> None:
        """Find settings on the disk, or have the service asked; what is known isn't newer there."""
        if (
            self._known.copy_of(settings_id) is None
            and (found := await self._on_disk(settings_id)) is not None
        ):
            if found.is_current:
                self._metrics.settings_hits.add("disk")
                self._settle(settings_id, found)
                return
            self._known.put(settings_id, found)
        self._have_requested(settings_id)

    async def _on_disk(self, settings_id: int) -> UsableSettings | None:
        """The settings on the disk, current or old; None: there are none that can be read."""
        name = f"settings/{settings_id}"
        cached = await self._cache.get(name)
        if cached is None:
            return None
        try:
            compiled = await self._read(settings_id, cached.value)
        except SettingsUnusable:
            log(Event.CACHE_ROW_REFUSED, settings_id=settings_id)
            await self._cache.delete(name)
            return None
        return self._usable(compiled, len(cached.value), cached.age)

    def _have_requested(self, settings_id: int) -> None:
        if isinstance(self._known.get(settings_id), UnavailableSettings):
            self._slots.add_repeat(settings_id)
        else:
            self._slots.add(settings_id)
        self._wakeup.set()

    async def _request(self, slot: RequestSlot) -> None:
        began = anyio.current_time()
        known: KnownSettings | None = None
        body = b""
        with slot.scope:
            try:
                body = await self._source.fetch_settings(slot.id)
                known = self._usable(await self._read(slot.id, body), len(body))
            except (ServiceError, SettingsUnusable) as error:
                known = self._failed(slot.id, error)
        if known is None:
            known = self._unavailable(slot.id, ServiceUnavailable(GAVE_WAY))
        if isinstance(known, UsableSettings):
            self._metrics.settings_requests.add("found")
            log(Event.SETTINGS_FETCHED, settings_id=slot.id, size=len(body))
            if unreadable := known.compiled.unreadable:
                log(Event.SETTINGS_FLAWED, settings_id=slot.id, reason="; ".join(first_of(unreadable)))
            before = self._compile, self._ttl
            await self._cache.set(f"settings/{slot.id}", body)
            if (self._compile, self._ttl) != before:
                known = self._usable(await self._read(slot.id, body), len(body))
        elif isinstance(known, UnavailableSettings):
            if known.copy is None and known.failures == 1:  # a reload may have dropped it meanwhile
                found = await self._on_disk(slot.id)
                known = found if found is not None and found.is_current else replace(known, copy=found)
        elif isinstance(known, UnusableSettings):  # the copy of before is no more to be used
            await self._cache.delete(f"settings/{slot.id}")
        self._slots.end(slot)
        self._is_down = isinstance(known, UnavailableSettings)
        self._settle(slot.id, known)
        if not self._is_down:
            self._service_answers(began)
        self._wakeup.set()

    def _failed(self, settings_id: int, error: ServiceError | SettingsUnusable) -> KnownSettings:
        match error:
            case ServiceUnavailable():
                return self._unavailable(settings_id, error)
            case ServiceRefused(status=status) if status not in NO_SETTINGS:
                return self._unavailable(settings_id, ServiceUnavailable(str(error)))
            case ServiceRefused():
                return self._unusable(settings_id, f"settings {settings_id}: {error}")
            case _:
                return self._unusable(settings_id, str(error))

    def _settle(self, settings_id: int, known: KnownSettings) -> None:
        """Keep what is known now, and let the messages go on that wait for it."""
        wanted = self._open[settings_id]
        is_waited_for = wanted.waited_for is not None
        if is_waited_for and isinstance(known, UsableSettings):
            known = replace(known, found_until=anyio.current_time() + KEPT_FOR_WAITING)
        self._known.put(settings_id, known)
        if isinstance(known, UnavailableSettings) and is_waited_for and self._old_copy(settings_id) is None:
            wanted.settle(known, goes_on=True)
            self._repeat_at(settings_id, wanted, known.until)
            return
        wanted.settle(known, goes_on=False)
        del self._open[settings_id]
        if is_waited_for:
            self._backlog.answered(waits.settings(settings_id))

    def _service_answers(self, began: float) -> None:
        """A request that began then was answered: ids that wait for the service since before are requested.

        A pause that the service asked for ends with its first answer; each id's own pause stays.
        """
        if self._uses_old:
            self._uses_old = False
            log(Event.SETTINGS_CURRENT)
        over = [id_ for id_, (failed_at, _) in self._left_alone.items() if failed_at < began]
        for settings_id in over:
            _, until = self._left_alone.pop(settings_id)
            known = self._known.get(settings_id)
            if isinstance(known, UnavailableSettings) and known.until > until:
                self._known.put(settings_id, replace(known, until=until))
                wanted = self._open.get(settings_id)
                if wanted is not None and wanted.repeat_at is not None:
                    self._repeat_at(settings_id, wanted, until)

    async def _read(self, settings_id: int, body: bytes) -> CompiledSettings:
        while True:
            compile_settings = self._compile
            read = partial(self._compiled, settings_id, body, compile_settings)
            compiled = await self._aside.sized(len(body), read)
            if self._compile is compile_settings:
                return compiled

    def _compiled(
        self, settings_id: int, body: bytes, compile_settings: Callable[[Settings], CompiledSettings]
    ) -> CompiledSettings:
        try:
            return compile_settings(self._source.parse_settings(settings_id, body))
        except ServiceUnreadable as error:
            raise SettingsUnusable(str(error)) from None

    def _usable(self, compiled: CompiledSettings, size: int, age: float | None = 0.0) -> UsableSettings:
        """Settings of an age (None: it isn't known). With an unreadable block they are current for less."""
        limits = [] if self._ttl is None else [self._ttl]
        if compiled.unreadable:
            limits.append(FLAWED_SECONDS)
        seconds = None if not limits else 0.0 if age is None else min(limits) - age
        until = None if seconds is None else anyio.current_time() + seconds
        return UsableSettings(until, compiled, size + PIECE_BYTES * compiled.pieces)

    def _unusable(self, settings_id: int, reason: str) -> UnusableSettings:
        self._metrics.settings_requests.add("unusable")
        log(Event.SETTINGS_UNUSABLE, settings_id=settings_id, reason=reason)
        return UnusableSettings(anyio.current_time() + UNUSABLE_SECONDS, reason)

    def _unavailable(self, settings_id: int, error: ServiceUnavailable) -> UnavailableSettings:
        before = self._known.get(settings_id)
        failures = before.failures + 1 if isinstance(before, UnavailableSettings) else 1
        grown = backoff(1.0, LONGEST_SETTINGS_PAUSE, failures, least=0.7)
        asked = min(error.after or 0.0, LONGEST_ANSWER_WAIT)
        pause = max(asked, grown)
        now = anyio.current_time()
        self._left_alone.pop(settings_id, None)
        if asked > grown and len(self._left_alone) < MOST_KNOWN:
            self._left_alone[settings_id] = now, now + grown
        self._metrics.settings_requests.add("unavailable")
        log(Event.SETTINGS_UNAVAILABLE, settings_id=settings_id, reason=str(error), delay=pause)
        return UnavailableSettings(now + pause, str(error), failures, self._known.copy_of(settings_id))
