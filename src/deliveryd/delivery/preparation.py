"""The walk of messages from the journal to their dispatchers: settings, customer, then the router's steps."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import anyio
from anyio.abc import TaskGroup

from deliveryd.delivery.common import Common
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.routing import Route, Router
from deliveryd.delivery.settings import SettingsCache
from deliveryd.directory.base import Directory, DirectoryAnswer
from deliveryd.errors import DirectoryUnavailable, ServiceUnavailable, SettingsUnusable
from deliveryd.model import Entry, Transition
from deliveryd.rendering.content import CompiledSettings
from deliveryd.runtime import waits
from deliveryd.runtime.waits import PROMPT
from deliveryd.runtime.wakeup import AutoResetEvent
from deliveryd.states import ENDED

UNREQUESTED_PAUSE = 60.0
"""Seconds that a message waits for settings that aren't requested: too many ids are already."""

DIRECTORY_PAUSE = 5.0
LONGEST_DIRECTORY_PAUSE = 600.0
"""Seconds until a look-up that failed is repeated, while others succeed; the longest one is a bound."""

MOST_LOOKED_UP = 20_000
"""Customers that are looked up at a time; messages of others wait for a turn."""

TURN_PAUSE = 1.0
"""Seconds between two checks whether messages that wait for a turn may go on; one goes on as a probe."""


MOST_FILLED = 512 << 10
"""Characters that are filled in one turn of the event loop at most, beyond those of one message."""


class Preparer:
    """Walks messages to their dispatchers: in one pass those for which all is in memory.

    The others go on when their settings, then their customers are known. A message that needs an answer holds
    up none that needs another one: after a moment it waits in the journal, without a place, until the answer
    arrives.
    """

    def __init__(self, settings: SettingsCache, directory: Directory, router: Router, common: Common) -> None:
        self._settings = settings
        self._directory = directory
        self._router = router
        self._waiting = common.waiting
        self._pauses = common.memory.pauses
        self._ready = common.memory.ready
        self._backlog = common.memory.backlog
        self._clock = common.clock
        self._metrics = common.metrics
        self._looking_up: set[int] = set()  # customers whose messages wait in the journal for the look-up
        self._next_turns = math.inf  # when to look whether messages may go on that wait for a turn
        self._turns_wanted = AutoResetEvent()
        self._messages: list[Delivery] = []  # those that go on with what they were given
        self._steps: list[Transition] = []  # of those that wait in the journal for an answer

    def adopt(self, router: Router) -> None:
        """Route by another router from now on; what has no route and no recorded step begins again.

        A step to an end stays: by no router would the message go on, and its content is cleared.
        """
        self._router = router
        messages, self._messages = self._messages, []
        waiting = [step.entry for step in self._steps if step.after not in ENDED]
        self._steps = [step for step in self._steps if step.after in ENDED]
        self._ready.add([*(message.entry for message in messages), *waiting])

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

    def prepare(self, entries: Sequence[Entry], tasks: TaskGroup) -> Sequence[Route]:
        """Walk messages as far as all is known; return those that can be sent, and the steps of others.

        Those that need an answer come with a later call, when it is there.
        """
        for settings_id, group in _by_settings(entries).items():
            settings = self._settings.at_hand(settings_id)
            if settings is None:
                tasks.start_soon(self._request_settings, settings_id, group)
            else:
                self._begin(group, settings)
        messages, self._messages = self._messages, []
        routes: list[Route] = []
        if unknown := self._route(messages, routes, self._router.route):
            self._route(self._find_customers(unknown, tasks), routes, self._router.route_on)
        steps, self._steps = self._steps, []
        return [*steps, *routes]

    async def _request_settings(self, settings_id: int, entries: Sequence[Entry]) -> None:
        self._begin(entries, await self._settings.ask(settings_id))
        self._ready.wake()

    def _begin(
        self,
        entries: Sequence[Entry],
        settings: CompiledSettings | SettingsUnusable | ServiceUnavailable,
    ) -> None:
        """Let messages of one settings id go on with these; or wait, where they can't be had."""
        messages = [Delivery(entry, settings) for entry in entries]
        if not isinstance(settings, ServiceUnavailable):
            self._messages += messages
        elif self._settings.is_awaited(entries[0].settings_id):
            self._put_off(messages, waits.settings(entries[0].settings_id))
        else:
            for message in messages:
                self._put_off([message], None, UNREQUESTED_PAUSE * random.uniform(0.5, 1.0))

    def _route(
        self,
        messages: Sequence[Delivery],
        routes: list[Route],
        route_one: Callable[[Delivery, int], Route | None],
    ) -> list[Delivery]:
        """Route messages; return those that need their customer for it. What is too much comes again."""
        now, characters = self._clock.now(), 0
        unknown: list[Delivery] = []
        for count, message in enumerate(messages, 1):
            route = route_one(message, now)
            if route is None:
                unknown.append(message)
                continue
            routes.append(route)
            characters += message.size or _size(message.entry)
            if characters > MOST_FILLED:
                self._messages += messages[count:]
                self._ready.wake()
                break
        return unknown

    def _find_customers(self, unknown: Iterable[Delivery], tasks: TaskGroup) -> Sequence[Delivery]:
        """Return the messages of customers who are in memory; the others are looked up.

        Customers that are being looked up for longer than a moment, and those beyond the bound, are waited
        for in the journal.
        """
        here: dict[int, list[Delivery]] = defaultdict(list)
        for message in unknown:
            here[message.entry.customer_id].append(message)
        found = self._answered(here, self._directory.at_hand(here))
        for id_ in here.keys() & self._looking_up:
            self._put_off(here.pop(id_), waits.customer(id_))
        if len(self._looking_up) >= MOST_LOOKED_UP:
            for messages in here.values():
                self._put_off(messages, waits.DIRECTORY)
        elif here:
            tasks.start_soon(self._look_up, here, tasks)
        return found

    async def _look_up(self, here: dict[int, list[Delivery]], tasks: TaskGroup) -> None:
        """Have messages go on as their customers are found; after a moment the others wait in the journal."""

        async def go_on(answers: Mapping[int, DirectoryAnswer]) -> None:
            self._messages += self._answered(here, answers)
            for id_, answer in answers.items():
                if id_ in self._looking_up:
                    self._looking_up.remove(id_)
                    self._backlog.answered(waits.customer(id_), self._pause_after(answer))
            self._ready.wake()

        async def put_off() -> None:
            await anyio.sleep(PROMPT)
            self._looking_up.update(here)
            for id_, messages in here.items():
                self._put_off(messages, waits.customer(id_))
            here.clear()
            self._ready.wake()

        tasks.start_soon(put_off)
        await self._directory.look_up(list(here), go_on)

    def _answered(
        self, here: dict[int, list[Delivery]], answers: Mapping[int, DirectoryAnswer]
    ) -> Sequence[Delivery]:
        """Take the messages of these customers; return those that go on with what the directory has of them.

        The others wait: the directory couldn't answer.
        """
        found: list[Delivery] = []
        unknown = unavailable = 0
        for id_, answer in answers.items():
            messages = here.pop(id_, ())
            if isinstance(answer, DirectoryUnavailable):
                unavailable += len(messages)
                if self._directory.is_down:
                    self._put_off(messages, waits.DIRECTORY)
                else:
                    self._put_off(messages, None, self._pause_after(answer))
                continue
            if answer is None:
                unknown += len(messages)
            for message in messages:
                message.of(answer)
                found.append(message)
        customers = self._metrics.customers
        customers.add("found", count=len(found) - unknown)
        customers.add("unknown", count=unknown)
        customers.add("unavailable", count=unavailable)
        return found

    def _put_off(
        self,
        messages: Iterable[Delivery],
        waits_for: str | None,
        seconds: float = waits.LONGEST_ANSWER_WAIT,
    ) -> None:
        """Have messages wait in the journal for what they are made from, or for so many seconds.

        Those that have expired end, and those that are paused wait for that.
        """
        now = self._clock.now()
        for message in messages:
            message.becomes(self._router.without_removed(message.entry))
            step = message.held_back(self._pauses, now) or message.deferred(now, seconds, waits_for)
            self._steps.append(step)

    def _pause_after(self, answer: DirectoryAnswer) -> float:
        """Seconds until a customer's messages go on: at once after an answer."""
        if not isinstance(answer, DirectoryUnavailable) or self._directory.is_down:
            return 0.0
        return min(max(DIRECTORY_PAUSE, answer.after or 0.0), LONGEST_DIRECTORY_PAUSE)


def _size(entry: Entry) -> int:
    """Characters that preparing a message grows with, also one that can't be sent."""
    return len("".join(entry.variables.values()))


def _by_settings(entries: Sequence[Entry]) -> Mapping[int, Sequence[Entry]]:
    grouped: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        grouped[entry.settings_id].append(entry)
    return grouped
