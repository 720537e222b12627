"""Due messages: those that wait in the journal become ready when their time has come and there is room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio

from deliveryd.delivery.admission import PROBE_CANDIDATES, Admission, Sends
from deliveryd.delivery.common import Common
from deliveryd.delivery.fetch_turns import FetchTurns
from deliveryd.delivery.waiting import WAKE_BATCH
from deliveryd.journal.base import MOST_COUNTED
from deliveryd.journal.pauses import Pause
from deliveryd.model import SECOND
from deliveryd.rules.priorities import NO_RULES, Priorities
from deliveryd.runtime import waits
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL
from deliveryd.telemetry.log_events import Event, log

SHORT_OF_ROOM = 0.1
"""Seconds until the next look for waiting messages that found no room."""

PROBE_PAUSE = 1.0
"""Seconds between two portions of a provider whose breaker is open: see `PROBE_CANDIDATES`."""

RELEASE_PAUSE = 0.5
"""Seconds between two portions of what a provider that is paused or fails gives to others.

Where these have no room either, each message takes a place until it waits again, and new ones find none.
"""

WARN_AT = (0.5, 0.8)
LESS = 0.05
"""Shares of `queue.max_waiting` at which a warning is logged, and by how much it falls before the next."""


class DueMessages:
    """The loop from the backlog back into the line."""

    def __init__(
        self,
        common: Common,
        dispatchers: Mapping[str, Sends],
        *,
        max_waiting: int,
        priorities: Priorities = NO_RULES,
    ) -> None:
        self._journal = common.journal
        self._waiting = common.waiting
        self._backlog = common.memory.backlog
        self._in_flight = common.memory.in_flight
        self._pausing = common.memory.pausing
        self._pauses = common.memory.pauses
        self._limits = common.memory.limits
        self._dispatchers = dispatchers
        self._clock = common.clock
        self._heartbeats = common.heartbeats
        self._max_waiting = max_waiting
        self._priorities = priorities
        self._turns: dict[str, FetchTurns] = {}  # by provider
        self._passed = common.memory.passed
        self._look_again: dict[str, float] = {}  # by provider with an open breaker, the event loop's time
        self._pauses_seen = 0
        self._is_unbound_first = False
        self._parked: Mapping[str, Pause] = {}  # by provider, its pause
        self._to_park: dict[str, Pause] = {}  # the same, while messages may wait for the provider
        self._short = 0  # messages that are due and found no place
        self._level = 0
        self._is_misplaced = False

    def adopt(self, max_waiting: int, priorities: Priorities) -> None:
        """Warn by another limit, and fetch by other priorities from now on."""
        self._max_waiting = max_waiting
        self._priorities = priorities

    async def run(self) -> None:
        """Make messages ready until cancelled."""
        pause = 0.0
        while True:
            self._heartbeats.beat("due")
            await self._backlog.changed.wait(min(max(pause, 0.01), HEARTBEAT_INTERVAL))
            self._watch_journal()
            ahead = self._clock.ahead()  # first: a step after this is in the other one, and followed once
            if step := self._passed.stepped() or -ahead:
                await self._waiting.follow_clock(step)
            await self._pausing.end_those_over()
            self._follow_pauses()
            await self._wake_answered()
            if self._limits.freed:
                await self._wake_freed()
            pause = min(await self._fetch_all(), self._until_a_pause_ends())
            await self._warn_of_many()

    async def _wake_answered(self) -> None:
        """Make messages due whose answer arrived, or whose provider works again.

        One batch a turn: however many wait for one answer, all others come due in time beside them.
        """
        answers = self._backlog.take_answers()
        resumed = [waits_for for waits_for in answers if waits.is_paused(waits_for)]
        if resumed and await self._pausing.wake(resumed):
            self._backlog.answered_before(resumed, 0.0)
        answers = {waits_for: pause for waits_for, pause in answers.items() if not waits.is_paused(waits_for)}
        for seconds in set(answers.values()):
            answered = [waits_for for waits_for, pause in answers.items() if pause == seconds]
            if await self._waiting.wake(answered, seconds, WAKE_BATCH) == WAKE_BATCH:
                self._backlog.answered_before(answered, seconds)

    async def _wake_freed(self) -> None:
        """Let as many messages go on as budgets have left again."""
        for waits_for, left in self._limits.take_freed(self._clock.now()):
            await self._waiting.wake([waits_for], most=left)

    def _follow_pauses(self) -> None:
        """After a change of what is paused, have queued messages wait, then those that wait for providers."""
        pauses = self._pauses
        if pauses.version == self._pauses_seen:
            return
        self._pauses_seen = pauses.version
        paused = {
            name: pause
            for name, each in self._dispatchers.items()
            if (pause := each.admission.pause) is not None
        }
        self._to_park = {name: each for name, each in paused.items() if self._parked.get(name) != each}
        self._parked = paused
        if pauses.any:
            for dispatcher in self._dispatchers.values():
                dispatcher.route_paused()

    def _until_a_pause_ends(self) -> float:
        """The seconds until the first pause ends by itself."""
        return max((self._pausing.next_end - self._clock.in_journal()) / SECOND, 0.0)

    async def _fetch_all(self) -> float:
        """Make due messages ready; return the seconds until more may be due."""
        self._short = 0
        pause = HEARTBEAT_INTERVAL
        if self._backlog.count:
            # In turn before and after the providers: else a provider's backlog would leave it no place.
            is_unbound_first = self._is_unbound_first
            pauses = [await self._fetch_unbound()] if is_unbound_first else []
            pauses += [
                await self._fetch_of(name, dispatcher.admission)
                for name, dispatcher in list(self._dispatchers.items())
            ]
            if not is_unbound_first:
                pauses.append(await self._fetch_unbound())
            pause = min(*pauses, await self._fetch_overdue())
        elif self._backlog.paused:
            pause = await self._fetch_overdue()
        self._in_flight.owe(self._short)
        return pause

    async def _fetch_of(self, name: str, admission: Admission) -> float:
        """Fetch what is due of one provider, then what waits for room there: each within what is left.

        What finds no room is owed some of what is freed next.
        """
        if admission.pause is not None:
            admission.reserve(0)
            return await self._fetch_paused(name, admission)
        if admission.provider.is_down:
            admission.reserve(0)
            return await self._fetch_candidates(name, admission)
        pause, left = await self._fetch_in_turn(
            name, lambda: min(admission.room_to_fetch, self._in_flight.free), admission.share
        )
        # A single provider has room for whatever holds a place.
        admission.reserve(left if len(self._dispatchers) > 1 else 0)
        self._short += min(left, admission.room_to_fetch)
        return SHORT_OF_ROOM if left else pause

    async def _fetch_in_turn(self, name: str, room: Callable[[], int], share: int) -> tuple[float, int]:
        """Fetch what is due at a provider; what finds no room waits for it, where settings ids take turns.

        Returns the seconds until more is due, and how many more may be, at most.
        """
        is_short = self._backlog.is_short_of_room(name)
        pause, left = await self._fetch({name: 0 if is_short else room()})
        # Those bound to none find room soon, unless they are many; but some may be to go first.
        if left >= (1 if name or self._priorities != NO_RULES else MOST_COUNTED):
            left -= await self._waiting.have_wait_for_room(name, self._clock.in_journal())
        if self._backlog.is_short_of_room(name):
            return pause, max(left, await self._fetch_for_room(name, room(), share))
        return pause, max(left, 0)

    async def _fetch_for_room(self, name: str, room: int, share: int) -> int:
        """Fetch what waits for room at a provider; return how many more may, at most."""
        if room:
            self._backlog.begin_room(name)
            if await self._fetch_by_turns(name, [waits.repeat(name), waits.room(name)], room) < room:
                return 0
            self._backlog.note_short_of_room([name])
        return share

    async def _fetch_by_turns(self, name: str, waits_for: Sequence[str], room: int) -> int:
        """Fetch so many messages that wait for one of these; return how many there were."""
        turns = self._turns.setdefault(name, FetchTurns())
        found = await self._waiting.fetch_waiting_for(waits_for, turns.portions(room, self._priorities))
        turns.took(found, self._priorities)
        return len(found)

    async def _fetch_paused(self, name: str, admission: Admission) -> float:
        """Let what waits for a paused provider be due at another one, or wait for the end of the pause.

        One portion a turn. Then only what is due for a retry there is left: it is held when it is routed.
        """
        if (pause := self._to_park.get(name)) is not None:
            now = anyio.current_time()
            if (wait := self._look_again.get(name, now) - now) > 0:
                return wait
            if admission.gives_away and await self._waiting.release(name):
                self._look_again[name] = now + RELEASE_PAUSE
                return RELEASE_PAUSE
            if await self._pausing.park(name, pause):
                return SHORT_OF_ROOM
            del self._to_park[name]
        pause_seconds, left = await self._fetch({name: self._in_flight.free_for_some})
        return SHORT_OF_ROOM if left else pause_seconds

    async def _fetch_candidates(self, name: str, admission: Admission) -> float:
        """Fetch a few of a provider whose breaker is open, seldom: most of them are put off again."""
        now = anyio.current_time()
        if (wait := self._look_again.get(name, now) - now) > 0:
            return wait
        gives_more = admission.gives_away and await self._waiting.release(name)
        pause = RELEASE_PAUSE if gives_more else PROBE_PAUSE
        self._look_again[name] = now + pause
        if free := self._in_flight.free_for_some:
            await self._fetch({name: min(PROBE_CANDIDATES, free)})
        if self._backlog.is_short_of_room(name):
            self._backlog.begin_room(name)
            for waits_for, lacking in admission.lacking.items():
                room = min(lacking, self._in_flight.free_for_some)
                if not room or await self._fetch_by_turns(name, [waits_for], room) == room:
                    self._backlog.note_short_of_room([name])
        return pause

    async def _fetch_unbound(self) -> float:
        """Fetch what is due and bound to no provider, into some of the places: it may have to wait again."""
        pause, left = await self._fetch_in_turn(
            waits.ANY, lambda: self._in_flight.free_for_some, MOST_COUNTED
        )
        self._short += left
        self._is_unbound_first = left > 0 and not self._is_unbound_first
        return SHORT_OF_ROOM if left else pause

    async def _fetch_overdue(self) -> float:
        """Fetch what has waited long enough for something."""
        now = self._clock.in_journal()
        if now >= self._backlog.overdue_at:
            await self._waiting.fetch_overdue(now)
        return max((self._backlog.overdue_at - now) / SECOND, SHORT_OF_ROOM)

    async def _fetch(self, room: Mapping[str, int]) -> tuple[float, int]:
        """Fetch what is due; return the seconds until more is, and how many more are already."""
        now = self._clock.in_journal()
        next_due, left, found = await self._waiting.fetch_due(now, room)
        if found or left:
            return SHORT_OF_ROOM, left
        return (HEARTBEAT_INTERVAL if next_due is None else (next_due - now) / SECOND), 0

    def _watch_journal(self) -> None:
        """Log once when the journal's file is gone from its place, and once when it is back."""
        reason = self._journal.misplaced()
        if (reason is not None) is self._is_misplaced:
            return
        self._is_misplaced = reason is not None
        if reason is not None:
            log(Event.JOURNAL_MISPLACED, reason=reason)
        else:
            log(Event.JOURNAL_IN_PLACE)

    async def _warn_of_many(self) -> None:
        """Log once, each time that a level is reached, that many messages wait, and what most wait for."""
        waiting = self._backlog.count
        share = waiting / self._max_waiting
        level = sum(share >= each for each in WARN_AT)
        if level > self._level:
            cause, count = await self._journal.largest_cause()
            log(
                Event.JOURNAL_FILLING,
                waiting=waiting, limit=self._max_waiting, reason=f"{count} of them wait for {cause}",
            )  # fmt: skip
        if level > self._level or share < WARN_AT[self._level - 1] - LESS:
            self._level = level
