"""The pace of a provider's attempts (`rate`), and the turns in which workers of one journal probe it.

Breakers stay each worker's own: one whose network is broken must not stop the others. But only one worker at
a time probes, for the length of its breaker's pause; then it is anybody's turn. So all together send as many
probes as one would. When the provider answers one of them, the turn is free at once.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Collection
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from deliveryd.errors import JournalUnreachable
from deliveryd.journal.base import Allotment, SharedLimits
from deliveryd.options.units import Rate
from deliveryd.runtime.breaker import Breaker, BreakerPolicy
from deliveryd.runtime.wakeup import AutoResetEvent


class Pace:
    """Spaces attempts out evenly: no second has more than the rate and a twentieth.

    What uses more permits than there are, such as an SMS of many parts, begins with the first one, and the
    next attempt waits for all of them.
    """

    def __init__(self, rate: Rate) -> None:
        self._interval = rate.per / rate.permits
        self._burst = max(1.0, 0.05 / self._interval)
        self._next = 0.0

    def allowed(self, wanted: int) -> int:
        """How many attempts may be made now, `wanted` at most."""
        now = anyio.current_time()
        self._next = max(self._next, now - self._burst * self._interval)
        return max(min(wanted, int((now - self._next) / self._interval + 1e-9)), 0)

    def spend(self, number: int) -> None:
        """Count permits that are used."""
        self._next += number * self._interval

    def wait(self) -> float:
        """Seconds until another attempt may be made."""
        return max(self._next + self._interval - anyio.current_time(), 0.0)


SPREAD = 0.06
"""Seconds over which workers spread their questions that are due at the same instant."""

UNREACHABLE_PAUSE = 1.0
"""Seconds until a database is asked again that couldn't be reached."""

_LATE = 0.05
"""Seconds, or one interval, after which an attempt that could have been made is lost."""


class _Slice:
    """Attempts that are reserved: one at each interval from `start` on."""

    def __init__(self, start: float, count: int, interval: float) -> None:
        self.start = start
        self.end = start + count * interval
        self.used = 0
        self._count = count
        self._interval = interval
        self._next = 0  # used or lost are those before

    def lose_late(self, now: float) -> int:
        """Drop attempts that are too late now; return how many are left."""
        earliest = math.ceil((now - max(self._interval, _LATE) - self.start) / self._interval - 1e-9)
        self._next = min(max(self._next, earliest), self._count)
        return self.left

    def allowed(self, now: float) -> int:
        """How many attempts may be made now."""
        latest = math.floor((now - self.start) / self._interval + 1e-9) + 1
        return max(min(latest, self._count) - self._next, 0)

    def spend(self, number: int) -> None:
        """Count attempts that are made."""
        self._next += number
        self.used += number

    @property
    def left(self) -> int:
        """How many are neither used nor lost."""
        return self._count - self._next

    @property
    def is_used_up(self) -> bool:
        """Whether none was lost."""
        return self.used == self._count

    @property
    def next_at(self) -> float:
        """When the next one may be made."""
        return self.start + self._next * self._interval


class SharedPace:
    """Has slices of the rate reserved, each before the one before it is over, while there is demand.

    A worker that has a slice asks later than one that has none, so that they take turns. Answers are measured
    from before the question: what comes late is lost, and overlaps no other worker's slice. What uses more
    permits than there are owes them: they are paid before the next attempt.
    """

    def __init__(self, provider: str, rate: Rate, journal: SharedLimits) -> None:
        self._provider = provider
        self._interval = rate.per / rate.permits
        self._journal = journal
        self._slices: deque[_Slice] = deque()
        self._owed = 0
        self._most: int | None = None  # after a slice that wasn't used up: there was no use for more
        self._asks_at = 0.0
        self._is_asking = False
        self._is_short = False

    def allowed(self, wanted: int) -> int:
        """How many attempts may be made now, `wanted` at most."""
        if self._owed:
            self._pay()
        if self._owed:
            return 0
        now = anyio.current_time()
        return min(wanted, sum(each.allowed(now) for each in self._current(now)))

    def spend(self, number: int) -> None:
        """Use permits; those that there aren't are owed."""
        self._owed += number
        self._pay()

    def _pay(self) -> None:
        now = anyio.current_time()
        for each in self._current(now):
            here = min(self._owed, each.allowed(now))
            each.spend(here)
            self._owed -= here

    def wait(self) -> float:
        """Seconds until another attempt may be made, or more are to be reserved."""
        now = anyio.current_time()
        instants = [each.next_at for each in self._current(now) if each.left]
        if self._is_short and not self._is_asking:
            instants.append(self._next_question)
        return max(min(instants, default=math.inf) - now, 0.0)

    def reserve(self, tasks: TaskGroup, wakeup: AutoResetEvent, wanted: int) -> None:
        """Begin to request more attempts if this many are needed and it is time; wake when they are there."""
        now = anyio.current_time()
        more = wanted + self._owed - sum(each.left for each in self._current(now))
        self._is_short = more > 0
        if self._is_short and not self._is_asking and now >= self._next_question:
            self._is_asking = True
            most = more if self._most is None else min(more, self._most)
            tasks.start_soon(self._ask, most, wakeup)

    @property
    def _next_question(self) -> float:
        """When more may be asked for: in the second half of the latest slice."""
        if not self._slices:
            return self._asks_at
        last = self._slices[-1]
        return max(self._asks_at, (last.start + last.end) / 2)

    def _current(self, now: float) -> Collection[_Slice]:
        """The slices that aren't over."""
        slices = self._slices
        while slices and not slices[0].lose_late(now):
            over = slices.popleft()
            self._most = None if over.is_used_up else max(2 * over.used, 1)
        return slices

    async def _ask(self, wanted: int, wakeup: AutoResetEvent) -> None:
        asked_at = anyio.current_time()
        try:
            count, delay = await self._journal.allot(self._provider, self._interval, wanted)
        except JournalUnreachable:  # nothing can be recorded either, and so nothing is sent
            count, delay = Allotment(0, UNREACHABLE_PAUSE)
        finally:
            self._is_asking = False
        if count:
            self._slices.append(_Slice(asked_at + delay, count, self._interval))
        else:
            self._asks_at = asked_at + delay + random.uniform(0.0, SPREAD)
        wakeup.set()


LONGEST_LOOK = 5.0
"""Seconds until it is looked again whether another worker's probe was answered."""


class ProbeTurns:
    """This worker's turns at one provider."""

    def __init__(self, provider: str, journal: SharedLimits) -> None:
        self._provider = provider
        self._journal = journal
        self._has_turn = False

    async def take(self, breaker: Breaker, policy: BreakerPolicy) -> bool:
        """Take a turn for a probe that has begun; False: it is another worker's, and the probe is put off."""
        pause = max(breaker.pause, policy.pause)
        try:
            wait = await self._journal.claim_probe(self._provider, pause, policy.max_pause)
        except JournalUnreachable:
            wait = UNREACHABLE_PAUSE
        if wait:
            breaker.put_off(min(wait, LONGEST_LOOK) + random.uniform(0.0, SPREAD))
            return False
        self._has_turn = True
        return True

    def follow(self, breaker: Breaker, tasks: TaskGroup) -> None:
        """Give a turn back when the provider has answered."""
        if self._has_turn and not breaker.is_open:
            self._has_turn = False
            tasks.start_soon(self._give_back)

    async def _give_back(self) -> None:
        with suppress(JournalUnreachable):  # it ends by itself
            await self._journal.free_probe(self._provider)
