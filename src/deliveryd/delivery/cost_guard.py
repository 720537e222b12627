"""Holds settings whose SMS suddenly have more parts than before (`cost_guard`).

Of each settings id on a channel it knows the mean parts of the last thousand messages, and those of the
latest 50. Where these have more than `cost_guard` times as many, the settings are paused, until an operator
resumes them. A pause of settings, whoever ordered it, makes it forget what it knew of them: what is sent
after their resumption is the new normal.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

import anyio

from deliveryd.delivery.memory import LineMemory
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import JournalFull
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.pauses import PauseKind
from deliveryd.options.quotas import COST_GUARD
from deliveryd.telemetry.log_events import Event, log

JUDGED = 50
"""Messages whose parts are compared with those before: so many are sent above the guard at most."""

REMEMBERED = 1000
"""Messages whose mean counts as the normal."""

LEAST_KNOWN = 100
"""Messages before the latest that a judgement needs."""

KEEP_INTERVAL = 60.0
"""Seconds between two records of what is known, in the journal."""

_AGAIN = 1.0
"""Seconds until it is tried again to pause settings while the journal records nothing."""


class _Parts:
    """The parts of the messages of one settings id on one channel."""

    def __init__(self, count: int = 0, mean: float = 0.0) -> None:
        self.count = count
        self.mean = mean
        self._latest: deque[int] = deque()
        self._sum = 0

    def add(self, parts: int) -> None:
        """Count a message; the oldest of the latest belongs to those before from now on."""
        self._latest.append(parts)
        self._sum += parts
        if len(self._latest) > JUDGED:
            oldest = self._latest.popleft()
            self._sum -= oldest
            self.count = min(self.count + 1, REMEMBERED)
            self.mean += (oldest - self.mean) / self.count

    def exceeds(self, limit: float) -> bool:
        """Whether the latest messages have more than `limit` times as many, whatever is missing of them."""
        return self.count >= LEAST_KNOWN and self._sum > limit * self.mean * JUDGED

    @property
    def latest_mean(self) -> float:
        """The mean of the latest messages."""
        return self._sum / max(len(self._latest), 1)


class CostGuard:
    """Watches the messages that are about to be sent on channels with a `cost_guard`."""

    def __init__(self, journal: Journal, memory: LineMemory, recorder: Recorder) -> None:
        self._journal = journal
        self._pausing = memory.pausing
        self._recorder = recorder
        self._known: defaultdict[int, dict[str, _Parts]] = defaultdict(dict)
        self._changed: set[int] = set()
        self._is_loaded = False
        self._version = -1
        self.limits: Mapping[str, float] = {}
        """By channel, how many times as many parts are too many."""

    def follow(self, limits: Mapping[str, float]) -> None:
        """Judge by these limits from now on."""
        self.limits = limits

    async def admit(self, channel: str, batch: Sequence[Delivery]) -> None:
        """Count messages that are to be sent; pause settings that exceed the limit, before this returns."""
        if not self._is_loaded:
            await self._load()
        self._forget_paused()
        for message in batch:
            entry = message.entry
            if (
                entry.was_tried
                or entry.may_have_arrived
                or self._pausing.pauses.of_message(entry) is not None
            ):
                continue
            known = self._known[entry.settings_id]
            parts = known.setdefault(channel, _Parts())
            parts.add(message.parts)
            self._changed.add(entry.settings_id)
            if parts.exceeds(self.limits[channel]):
                await self._pause(entry.settings_id, channel, parts)

    async def keep(self) -> None:
        """Keep in the journal what changed since the last call."""
        if not self._changed:
            return
        self._forget_paused()
        changed, self._changed = self._changed, set()
        await self._journal.keep_parts(
            {
                id_: json.dumps({name: [each.count, each.mean] for name, each in self._known[id_].items()})
                for id_ in changed
                if id_ in self._known
            }
        )

    async def _load(self) -> None:
        for id_, kept in (await self._journal.kept_parts()).items():
            self._known[id_] = {name: _Parts(*values) for name, values in json.loads(kept).items()}
        self._is_loaded = True

    def _forget_paused(self) -> None:
        """What an operator paused, or the guard of any worker, is learnt anew."""
        pauses = self._pausing.pauses
        if pauses.version != self._version:
            self._version = pauses.version
            for pause in pauses.all:
                if pause.kind is PauseKind.SETTINGS:
                    self._known.pop(int(pause.key), None)

    async def _pause(self, settings_id: int, channel: str, parts: _Parts) -> None:
        reason = (
            f"{parts.latest_mean:.2f} SMS parts per message, {parts.mean:.2f} before:"
            f" more than channels.{channel}.cost_guard = {self.limits[channel]:g} allows"
        )
        self._known.pop(settings_id, None)
        log(Event.SETTINGS_HELD, channel=channel, settings_id=settings_id, reason=reason)
        order = Order(Action.PAUSE, ItemKind.SETTINGS, (str(settings_id),), None, COST_GUARD, reason)
        while True:
            try:
                await self._recorder.decide(order, self._pausing.here)
            except JournalFull:
                await anyio.sleep(_AGAIN)
            else:
                return
