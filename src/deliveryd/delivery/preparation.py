"""Finds what messages are made from: their settings, and their customers where they matter."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from deliveryd.delivery.common import Common
from deliveryd.delivery.routing import Held, Routed, Router, Undeliverable, is_expired
from deliveryd.delivery.settings import SettingsCache
from deliveryd.directory.base import Directory, DirectoryAnswer
from deliveryd.errors import DirectoryUnavailable, ServiceUnavailable, SettingsUnusable
from deliveryd.model import Entry
from deliveryd.rendering.content import CompiledSettings
from deliveryd.runtime import waits
from deliveryd.runtime.waits import PROMPT
from deliveryd.runtime.wakeup import AutoResetEvent

UNREQUESTED_PAUSE = 60.0
"""Seconds that a message waits for settings that aren't requested: too many ids are already."""

DIRECTORY_PAUSE = 5.0
LONGEST_DIRECTORY_PAUSE = 60.0
"""Seconds until a look-up that failed is repeated, while others succeed; the longest one is a bound."""

MOST_LOOKED_UP = 20_000
"""Customers that are looked up at a time; messages of others wait for a turn."""

TURN_PAUSE = 1.0
"""Seconds between two checks whether messages that wait for a turn may go on; one goes on as a probe."""


MOST_FILLED = 512 << 10
"""Characters that are filled in one turn of the event loop at most, beyond those of one message."""


class Deferred(NamedTuple):
    """A message that waits in the journal, this many seconds at most, for something that it is made from.

    `waits_for` names what wakes it; None: only its time does.
    """

    entry: Entry
    seconds: float
    waits_for: str | None = None
    expires_at: int | None = None


Prepared = Routed | Undeliverable | Deferred | Held


_Unknown = tuple[Entry, CompiledSettings]
"""A message whose customer matters, before the look-up."""

_LookedUp = tuple[Entry, CompiledSettings, DirectoryAnswer]
"""The same after the look-up."""


class Preparer:
    """Prepares messages: in one pass those for which all is in memory, the others as answers come.

    A message that needs an answer holds up none that needs another one: after a moment it waits in the
    journal, without a place, until the answer arrives.
    """

    def __init__(self, settings: SettingsCache, directory: Directory, router: Router, common: Common) -> None:
        self._settings = settings
        self._directory = directory
        self._router = router
        self._waiting = common.waiting
        self._ready = common.memory.ready
        self._pauses = common.memory.pauses
        self._backlog = common.memory.backlog
        self._clock = common.clock
        self._metrics = common.metrics
        self._looking_up: set[int] = set()  # customers whose messages wait in the journal for the look-up
        self._next_turns = math.inf  # when to look whether messages may go on that wait for a turn
        self._turns_wanted = AutoResetEvent()
        self._late: list[Prepared] = []
        self.finished = AutoResetEvent()
        """Set when messages are prepared that had to wait for an answer; `take_late` returns them."""

    def adopt(self, router: Router) -> None:
        """Route by another router from now on; what was routed and not yet taken is routed again."""
        self._router = router
        late, self._late = self._late, []
        self._ready.add([each.entry for each in late])

    async def run(self) -> None:
        """Request settings, and let messages go on that wait for a turn to ask the directory."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._settings.run)
            while True:
                await self._turns_wanted.wait(max(self._next_turns - anyio.current_time(), 0.0))
                if anyio.current_time() >= self._next_turns:
                    self._next_turns = math.inf
                    room = self._room_for_turns()
                    if room <= 0 or await self._waiting.wake([waits.DIRECTORY], most=room) == room:
                        self._want_turns()

    def _want_turns(self) -> None:
        """Messages wait for a turn: look in a while, not at once, whether they may go on."""
        self._next_turns = min(self._next_turns, anyio.current_time() + TURN_PAUSE)
        self._turns_wanted.set()

    def now_waiting(self, waits_for: Collection[str]) -> None:
        """Messages wait for these in the journal now; those that were answered meanwhile go on."""
        for each in waits_for:
            kind, _, number = each.partition(" ")
            if kind == "directory":
                self._want_turns()
            elif (kind == "settings" and not self._settings.is_awaited(int(number))) or (
                kind == "customer" and int(number) not in self._looking_up
            ):
                self._backlog.answered(each)

    def _room_for_turns(self) -> int:
        """How many of those that wait for a turn may go on: one as a probe while the directory is down."""
        return 1 if self._directory.is_down else MOST_LOOKED_UP // 2 - len(self._looking_up)

    def prepare(self, entries: Sequence[Entry], tasks: TaskGroup) -> Sequence[Prepared]:
        """Prepare messages; those that need an answer come later, from `take_late`."""
        prepared: list[Prepared] = []
        unknown: list[_Unknown] = []
        for settings_id, group in _by_settings(entries).items():
            settings = self._settings.at_hand(settings_id)
            if settings is None:
                tasks.start_soon(self._request_settings, settings_id, group, tasks)
            else:
                unknown += self._route(group, settings, prepared)
        if unknown := self._look_up_known(unknown, prepared):
            tasks.start_soon(self._look_up, unknown, tasks)
        return prepared

    def take_late(self) -> Sequence[Prepared]:
        """The messages whose answers arrived, or are waited for in the journal, since the last call."""
        late, self._late = self._late, []
        return late

    def _finish(self, prepared: Sequence[Prepared]) -> None:
        if prepared:
            self._late += prepared
            self.finished.set()

    async def _request_settings(self, settings_id: int, entries: Sequence[Entry], tasks: TaskGroup) -> None:
        settings = await self._settings.ask(settings_id)
        prepared: list[Prepared] = []
        unknown = self._look_up_known(self._route(entries, settings, prepared), prepared)
        self._finish(prepared)
        if unknown:
            await self._look_up(unknown, tasks)

    def _route(
        self,
        entries: Sequence[Entry],
        settings: CompiledSettings | SettingsUnusable | ServiceUnavailable,
        prepared: list[Prepared],
    ) -> list[_Unknown]:
        """Route messages of one settings id; return those that need their customer for it."""
        if self._pauses.hold_messages and not isinstance(settings, ServiceUnavailable):
            entries = self._without_held(entries, settings, prepared)
        if isinstance(settings, SettingsUnusable):
            prepared += [self._router.route_without(entry, str(settings)) for entry in entries]
            return []
        if isinstance(settings, ServiceUnavailable):
            prepared += [self._without_settings(entry) for entry in entries]
            return []
        now, characters = self._clock.now(), 0
        unknown: list[_Unknown] = []
        for count, entry in enumerate(entries, 1):
            if self._router.needs_customer(entry, settings, now):
                unknown.append((entry, settings))
                continue
            prepared.append(route := self._router.route(entry, settings, None, now))
            characters += route.size if isinstance(route, Routed) else _size(entry)
            if characters > MOST_FILLED:
                self._ready.add(entries[count:])
                break
        return unknown

    def _without_held(
        self,
        entries: Sequence[Entry],
        settings: CompiledSettings | SettingsUnusable,
        prepared: list[Prepared],
    ) -> Sequence[Entry]:
        """Hold messages that are paused, or whose settings are; return the others, and those that expired."""
        expires_at = None if isinstance(settings, SettingsUnusable) else settings.expires_at
        if is_expired(expires_at, self._clock.now()):
            return entries
        left = []
        for entry in entries:
            if (pause := self._pauses.of_message(entry)) is not None:
                prepared.append(Held(entry, pause, expires_at))
            else:
                left.append(entry)
        return left

    def _without_settings(self, entry: Entry) -> Deferred:
        if self._settings.is_awaited(entry.settings_id):
            return Deferred(entry, waits.LONGEST_ANSWER_WAIT, waits.settings(entry.settings_id))
        return Deferred(entry, UNREQUESTED_PAUSE * random.uniform(0.5, 1.0))

    def _look_up_known(self, unknown: list[_Unknown], prepared: list[Prepared]) -> list[_Unknown]:
        """Route messages of customers who are in memory; return those to look up.

        Customers that are being looked up for longer than a moment, and those beyond the bound, are waited
        for in the journal.
        """
        if not unknown:
            return []
        known = self._directory.at_hand({entry.customer_id for entry, _ in unknown})
        found: list[_LookedUp] = []
        left: list[_Unknown] = []
        for entry, settings in unknown:
            id_ = entry.customer_id
            if id_ in known:
                found.append((entry, settings, known[id_]))
            elif id_ in self._looking_up:
                prepared.append(_put_off(entry, settings, waits.customer(id_)))
            elif len(self._looking_up) >= MOST_LOOKED_UP:
                prepared.append(_put_off(entry, settings, waits.DIRECTORY))
            else:
                left.append((entry, settings))
        prepared += self._route_all(found, self._clock.now())
        return left

    async def _look_up(self, unknown: Sequence[_Unknown], tasks: TaskGroup) -> None:
        """Route messages as their customers are looked up; after a moment the others wait in the journal."""
        here: dict[int, list[_Unknown]] = defaultdict(list)
        for entry, settings in unknown:
            here[entry.customer_id].append((entry, settings))

        async def go_on(answers: Mapping[int, DirectoryAnswer]) -> None:
            found = [(*each, answer) for id_, answer in answers.items() for each in here.pop(id_, ())]
            if found:
                self._finish(self._route_all(found, self._clock.now()))
            for id_, answer in answers.items():
                if id_ in self._looking_up:
                    self._looking_up.remove(id_)
                    self._backlog.answered(waits.customer(id_), self._pause_after(answer))

        async def put_off() -> None:
            await anyio.sleep(PROMPT)
            late = [_put_off(*each, waits.customer(id_)) for id_, group in here.items() for each in group]
            if late:
                self._looking_up.update(here)
                here.clear()
                self._finish(late)

        tasks.start_soon(put_off)
        await self._directory.look_up(list(here), go_on)

    def _route_all(self, found: Sequence[_LookedUp], now: int) -> list[Prepared]:
        """Route messages after the look-up of their customers; those that failed are deferred."""
        routed, characters = [], 0
        for count, each in enumerate(found, 1):
            routed.append(route := self._route_found(*each, now))
            characters += route.size if isinstance(route, Routed) else _size(each[0])
            if characters > MOST_FILLED:
                self._ready.add([entry for entry, *_ in found[count:]])
                found = found[:count]
                break
        absent = sum(isinstance(answer, DirectoryUnavailable) for *_, answer in found)
        unknown = sum(answer is None for *_, answer in found)
        customers = self._metrics.customers
        customers.add("found", count=len(found) - absent - unknown)
        customers.add("unknown", count=unknown)
        customers.add("unavailable", count=absent)
        return routed

    def _route_found(
        self, entry: Entry, settings: CompiledSettings, answer: DirectoryAnswer, now: int
    ) -> Prepared:
        if not isinstance(answer, DirectoryUnavailable):
            return self._router.route(entry, settings, answer, now)
        if self._directory.is_down:
            return _put_off(entry, settings, waits.DIRECTORY)
        return Deferred(entry, self._pause_after(answer), None, settings.expires_at)

    def _pause_after(self, answer: DirectoryAnswer) -> float:
        """Seconds until a customer's messages go on: at once after an answer."""
        if not isinstance(answer, DirectoryUnavailable) or self._directory.is_down:
            return 0.0
        return min(max(DIRECTORY_PAUSE, answer.after or 0.0), LONGEST_DIRECTORY_PAUSE)


def _size(entry: Entry) -> int:
    """Characters that preparing a message grows with, also one that can't be sent."""
    return len("".join(entry.variables.values()))


def _put_off(entry: Entry, settings: CompiledSettings, waits_for: str) -> Deferred:
    return Deferred(entry, waits.LONGEST_ANSWER_WAIT, waits_for, settings.expires_at)


def _by_settings(entries: Sequence[Entry]) -> Mapping[int, Sequence[Entry]]:
    grouped: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        grouped[entry.settings_id].append(entry)
    return grouped
