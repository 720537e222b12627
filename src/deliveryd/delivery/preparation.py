"""Finds what messages are made from: their settings, and their customers where it matters who they are."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import anyio
from anyio.abc import TaskGroup

from deliveryd.delivery.routing import Routed, Router, Undeliverable, undeliverable
from deliveryd.delivery.settings import SettingsCache
from deliveryd.directory.base import Directory, DirectoryAnswer
from deliveryd.errors import DirectoryUnavailable, ServiceUnavailable, SettingsUnusable
from deliveryd.metrics import Metrics
from deliveryd.model import Clock, Entry
from deliveryd.rendering.content import CompiledSettings
from deliveryd.runtime import waits
from deliveryd.runtime.waiting import AutoResetEvent
from deliveryd.runtime.waits import PROMPT

ALL = 1 << 62
"""More messages than there are."""

WITHOUT_A_CALL = 60.0
"""Seconds that a message waits for settings that nobody calls it for: too many ids are asked for already."""

DIRECTORY_PAUSE = 5.0
LONGEST_DIRECTORY_PAUSE = 60.0
"""Seconds after which a directory that answers others is asked again about one, whatever it asked for."""

MOST_ASKED_ABOUT = 20_000
"""Customers that the directory is asked about at a time; messages of others wait for a turn."""

TURN_PAUSE = 1.0
"""Seconds between two looks at whether those may go on that wait for a turn; one goes on as a probe."""


class Deferred(NamedTuple):
    """A message that waits in the journal, so many seconds at most, for something that it is made from.

    `waits_for` names what wakes it; None: only its time does.
    """

    entry: Entry
    seconds: float
    waits_for: str | None = None
    expires_at: int | None = None


Prepared = Routed | Undeliverable | Deferred

Finish = Callable[[Sequence[Prepared]], Coroutine[Any, Any, None]]
"""Takes messages over that are prepared."""

Wake = Callable[[Collection[str], float, int], Awaitable[int]]
"""Lets messages go on that wait for one of these, after so many seconds, and so many at most."""


_Stranger = tuple[Entry, CompiledSettings]
"""A message for which it matters who the customer is, where that isn't known yet."""

_Met = tuple[Entry, CompiledSettings, DirectoryAnswer]
"""The same, when it is known, or known that it can't be said now."""


class Preparer:
    """Prepares messages: in one pass those for which all is in memory, the others as answers come.

    Who waits for an answer holds up nobody who needs another one, or none: an answer is waited for a moment,
    then its messages wait in the journal, without places, until `run` wakes them.
    """

    def __init__(
        self, settings: SettingsCache, directory: Directory, router: Router, clock: Clock, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._router = router
        self._clock = clock
        self._metrics = metrics
        self._asked_about: set[int] = set()  # customers whose messages wait in the journal for the answer
        self._answered: dict[str, float] = {}  # what is known now, and seconds until its messages go on
        self._next_turns = math.inf  # when it is looked whether those may go on that wait for a turn
        self._wakeup = AutoResetEvent()

    async def run(self, wake: Wake) -> None:
        """Ask for the settings that are wanted, and wake messages that wait in the journal for answers."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._settings.run, lambda id_: self._tell(waits.settings(id_)))
            while True:
                await self._wakeup.wait(max(self._next_turns - anyio.current_time(), 0.0))
                answered, self._answered = self._answered, {}
                for seconds in set(answered.values()):
                    whom = [each for each, pause in answered.items() if pause == seconds]
                    await wake(whom, seconds, ALL)
                if anyio.current_time() >= self._next_turns:
                    self._next_turns = math.inf
                    room = self._room_for_turns()
                    if room <= 0 or await wake([waits.DIRECTORY], 0.0, room) == room:
                        self._want_turns()

    def _want_turns(self) -> None:
        """Messages wait for a turn: look soon whether they may go on, but never at once, again and again."""
        self._next_turns = min(self._next_turns, anyio.current_time() + TURN_PAUSE)
        self._wakeup.set()

    def now_waiting(self, waits_for: Collection[str]) -> None:
        """Messages wait for these in the journal now; who was answered meanwhile goes on."""
        for each in waits_for:
            kind, _, number = each.partition(" ")
            if kind == "directory":
                self._want_turns()
            elif (kind == "settings" and not self._settings.is_awaited(int(number))) or (
                kind == "customer" and int(number) not in self._asked_about
            ):
                self._tell(each)

    def _tell(self, waits_for: str, seconds: float = 0.0) -> None:
        self._answered[waits_for] = seconds
        self._wakeup.set()

    def _room_for_turns(self) -> int:
        """How many of those that wait for a turn may go on: one as a probe while the directory is down."""
        return 1 if self._directory.is_down else MOST_ASKED_ABOUT // 2 - len(self._asked_about)

    def prepare(self, entries: Sequence[Entry], finish: Finish, tasks: TaskGroup) -> None:
        """Have all of them told to `finish`, some at a time; it is called by `tasks`."""
        prepared: list[Prepared] = []
        strangers: list[_Stranger] = []
        for settings_id, group in _by_settings(entries).items():
            settings = self._settings.at_hand(settings_id)
            if settings is None:
                tasks.start_soon(self._ask_for_settings, settings_id, group, finish, tasks)
            else:
                strangers += self._sort(group, settings, prepared)
        strangers = self._greet(strangers, prepared)
        if prepared:
            tasks.start_soon(finish, prepared)
        if strangers:
            tasks.start_soon(self._look_up, strangers, finish, tasks)

    async def _ask_for_settings(
        self, settings_id: int, entries: Sequence[Entry], finish: Finish, tasks: TaskGroup
    ) -> None:
        settings = await self._settings.ask(settings_id)
        prepared: list[Prepared] = []
        strangers = self._greet(self._sort(entries, settings, prepared), prepared)
        await finish(prepared)
        if strangers:
            await self._look_up(strangers, finish, tasks)

    def _sort(
        self,
        entries: Sequence[Entry],
        settings: CompiledSettings | SettingsUnusable | ServiceUnavailable,
        prepared: list[Prepared],
    ) -> list[_Stranger]:
        """Add messages of one settings id to those that are prepared; return those that need a customer."""
        if isinstance(settings, SettingsUnusable):
            prepared += [undeliverable(entry, str(settings)) for entry in entries]
            return []
        if isinstance(settings, ServiceUnavailable):
            prepared += [self._without_settings(entry) for entry in entries]
            return []
        now = self._clock.now()
        strangers: list[_Stranger] = []
        for entry in entries:
            if self._router.needs_customer(entry, settings, now):
                strangers.append((entry, settings))
            else:
                prepared.append(self._router.route(entry, settings, None, now))
        return strangers

    def _without_settings(self, entry: Entry) -> Deferred:
        if self._settings.is_awaited(entry.settings_id):
            return Deferred(entry, waits.LONGEST_ANSWER_WAIT, waits.settings(entry.settings_id))
        return Deferred(entry, WITHOUT_A_CALL * random.uniform(0.5, 1.0))

    def _greet(self, strangers: list[_Stranger], prepared: list[Prepared]) -> list[_Stranger]:
        """Prepare the messages of customers who are known already; return those to ask about.

        Left out are those who are asked about already, for longer than a moment, and those beyond the bound.
        """
        if not strangers:
            return []
        known = self._directory.at_hand({entry.customer_id for entry, _ in strangers})
        met: list[_Met] = []
        left: list[_Stranger] = []
        for entry, settings in strangers:
            id_ = entry.customer_id
            if id_ in known:
                met.append((entry, settings, known[id_]))
            elif id_ in self._asked_about:
                prepared.append(_put_off(entry, settings, waits.customer(id_)))
            elif len(self._asked_about) >= MOST_ASKED_ABOUT:
                prepared.append(_put_off(entry, settings, waits.DIRECTORY))
            else:
                left.append((entry, settings))
        prepared += self._introduce(met, self._clock.now())
        return left

    async def _look_up(self, strangers: Sequence[_Stranger], finish: Finish, tasks: TaskGroup) -> None:
        """Go on with messages as it becomes known who their customers are, or let them wait for it."""
        here: dict[int, list[_Stranger]] = defaultdict(list)
        for entry, settings in strangers:
            here[entry.customer_id].append((entry, settings))

        async def go_on(answers: Mapping[int, DirectoryAnswer]) -> None:
            met = [(*stranger, answer) for id_, answer in answers.items() for stranger in here.pop(id_, ())]
            if met:
                await finish(self._introduce(met, self._clock.now()))
            for id_, answer in answers.items():
                if id_ in self._asked_about:
                    self._asked_about.remove(id_)
                    self._tell(waits.customer(id_), self._pause_after(answer))

        async def put_off() -> None:
            await anyio.sleep(PROMPT)
            late = [
                _put_off(*stranger, waits.customer(id_)) for id_, each in here.items() for stranger in each
            ]
            if late:
                self._asked_about.update(here)
                here.clear()
                await finish(late)

        tasks.start_soon(put_off)
        await self._directory.look_up(list(here), go_on)

    def _introduce(self, met: Sequence[_Met], now: int) -> list[Prepared]:
        """The messages, now that it is known who their customers are, or that it can't be said."""
        absent = sum(isinstance(answer, DirectoryUnavailable) for *_, answer in met)
        unknown = sum(answer is None for *_, answer in met)
        self._metrics.customers_looked_up(len(met) - absent - unknown, len(met) - absent)
        self._metrics.customers_unavailable(absent)
        return [self._introduced(*each, now) for each in met]

    def _introduced(
        self, entry: Entry, settings: CompiledSettings, answer: DirectoryAnswer, now: int
    ) -> Prepared:
        if not isinstance(answer, DirectoryUnavailable):
            return self._router.route(entry, settings, answer, now)
        if self._directory.is_down:
            return _put_off(entry, settings, waits.DIRECTORY)
        return Deferred(entry, self._pause_after(answer), None, settings.expires_at)

    def _pause_after(self, answer: DirectoryAnswer) -> float:
        """Seconds until somebody's messages go on: at once when it is known who they are."""
        if not isinstance(answer, DirectoryUnavailable) or self._directory.is_down:
            return 0.0
        return min(max(DIRECTORY_PAUSE, answer.after or 0.0), LONGEST_DIRECTORY_PAUSE)


def _put_off(entry: Entry, settings: CompiledSettings, waits_for: str) -> Deferred:
    return Deferred(entry, waits.LONGEST_ANSWER_WAIT, waits_for, settings.expires_at)


def _by_settings(entries: Sequence[Entry]) -> Mapping[int, Sequence[Entry]]:
    grouped: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        grouped[entry.settings_id].append(entry)
    return grouped
