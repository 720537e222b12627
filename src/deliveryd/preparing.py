"""Finds what messages are made from: their settings, and their customers where it matters who they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from anyio.abc import TaskGroup

from deliveryd.customers.base import Answer, Directory
from deliveryd.errors import DirectoryUnavailable, ServiceUnavailable, SettingsUnusable
from deliveryd.metrics import Metrics
from deliveryd.model import Clock, Entry
from deliveryd.rendering.content import CompiledSettings
from deliveryd.routing import Routed, Router, Unsendable, unsendable
from deliveryd.settings import SettingsRoom

SERVICE_PAUSE = 1.0
DIRECTORY_PAUSE = 5.0
"""Seconds that messages wait for settings, and for a customer directory, that can't be had now."""


class PutOff(NamedTuple):
    """A message that has to wait, so many seconds, for something that it is made from."""

    entry: Entry
    seconds: float


Prepared = Routed | Unsendable | PutOff

Finish = Callable[[Sequence[Prepared]], Coroutine[Any, Any, None]]
"""Takes messages over that are prepared."""


_Stranger = tuple[Entry, CompiledSettings]
"""A message for which it matters who the customer is, where that isn't known yet."""

_Met = tuple[Entry, CompiledSettings, Answer]
"""The same, when it is known, or known that it can't be said now."""


class Preparation:
    """Prepares messages: in one pass those for which all is in memory, the others as answers come.

    Who waits for an answer holds up nobody who needs another one, or none.
    """

    def __init__(
        self, settings: SettingsRoom, directory: Directory, router: Router, clock: Clock, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._router = router
        self._clock = clock
        self._metrics = metrics

    def prepare(self, entries: Sequence[Entry], finish: Finish, tasks: TaskGroup) -> None:
        """Have all of them told to `finish`, some at a time; it is called by `tasks`."""
        prepared: list[Prepared] = []
        strangers: list[_Stranger] = []
        for settings_id, group in _by_settings(entries).items():
            settings = self._settings.at_hand(settings_id)
            if settings is None:
                tasks.start_soon(self._fetch_settings, settings_id, group, finish)
            else:
                strangers += self._sort(group, settings, prepared)
        strangers = self._greet(strangers, prepared)
        if prepared:
            tasks.start_soon(finish, prepared)
        if strangers:
            tasks.start_soon(self._look_up, strangers, finish)

    async def _fetch_settings(self, settings_id: int, entries: Sequence[Entry], finish: Finish) -> None:
        settings: CompiledSettings | SettingsUnusable | ServiceUnavailable
        try:
            settings = await self._settings.get(settings_id)
        except (SettingsUnusable, ServiceUnavailable) as error:
            settings = error
        prepared: list[Prepared] = []
        strangers = self._greet(self._sort(entries, settings, prepared), prepared)
        await finish(prepared)
        if strangers:
            await self._look_up(strangers, finish)

    def _sort(
        self,
        entries: Sequence[Entry],
        settings: CompiledSettings | SettingsUnusable | ServiceUnavailable,
        prepared: list[Prepared],
    ) -> list[_Stranger]:
        """Add messages of one settings id to those that are prepared; return those that need a customer."""
        if isinstance(settings, SettingsUnusable):
            prepared += [unsendable(entry, str(settings)) for entry in entries]
            return []
        if isinstance(settings, ServiceUnavailable):
            prepared += [PutOff(entry, settings.after or SERVICE_PAUSE) for entry in entries]
            return []
        now = self._clock.now()
        strangers: list[_Stranger] = []
        for entry in entries:
            if self._router.needs_customer(entry, settings, now):
                strangers.append((entry, settings))
            else:
                prepared.append(self._router.route(entry, settings, None, now))
        return strangers

    def _greet(self, strangers: list[_Stranger], prepared: list[Prepared]) -> list[_Stranger]:
        """Prepare the messages of customers who are known already; return the others."""
        if not strangers:
            return []
        known = self._directory.at_hand({entry.customer_id for entry, _ in strangers})
        met: list[_Met] = []
        left: list[_Stranger] = []
        for entry, settings in strangers:
            id_ = entry.customer_id
            if id_ in known:
                met.append((entry, settings, known[id_]))
            else:
                left.append((entry, settings))
        prepared += self._introduce(met, self._clock.now())
        return left

    async def _look_up(self, strangers: Sequence[_Stranger], finish: Finish) -> None:
        """Go on with messages as it becomes known who their customers are."""
        waiting: dict[int, list[_Stranger]] = defaultdict(list)
        for entry, settings in strangers:
            waiting[entry.customer_id].append((entry, settings))

        async def go_on(answers: Mapping[int, Answer]) -> None:
            met = [(*stranger, answer) for id_, answer in answers.items() for stranger in waiting[id_]]
            await finish(self._introduce(met, self._clock.now()))

        await self._directory.look_up(waiting.keys(), go_on)

    def _introduce(self, met: Sequence[_Met], now: int) -> list[Prepared]:
        """The messages, now that it is known who their customers are, or that it can't be said."""
        absent = sum(isinstance(answer, DirectoryUnavailable) for *_, answer in met)
        unknown = sum(answer is None for *_, answer in met)
        self._metrics.customers_looked_up(len(met) - absent - unknown, len(met) - absent)
        self._metrics.customers_unavailable(absent)
        return [self._introduced(*each, now) for each in met]

    def _introduced(self, entry: Entry, settings: CompiledSettings, answer: Answer, now: int) -> Prepared:
        if isinstance(answer, DirectoryUnavailable):
            return PutOff(entry, max(DIRECTORY_PAUSE, answer.after or 0.0))
        return self._router.route(entry, settings, answer, now)


def _by_settings(entries: Sequence[Entry]) -> Mapping[int, Sequence[Entry]]:
    grouped: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        grouped[entry.settings_id].append(entry)
    return grouped
