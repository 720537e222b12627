"""Pauses as they begin and end: the journal's, those in memory, and the messages that wait for their ends."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Sequence

import anyio

from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.in_flight import InFlightLimit
from deliveryd.delivery.line_clock import LineClock
from deliveryd.delivery.pauses import Pauses
from deliveryd.errors import JournalFull, JournalUnreachable
from deliveryd.journal.base import FromOthers, Recovery
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Decided
from deliveryd.journal.pauses import Pause
from deliveryd.model import Transition
from deliveryd.runtime import waits
from deliveryd.telemetry.log_events import Event, log

PAUSE_PORTION = 1000
"""How many messages one commit parks or wakes at most."""


class Pausing:
    """Keeps `pauses` as the journal has them, and lets messages go on whose pause ended.

    They go on in portions, beside all else that is due (see `DueMessages`).
    """

    def __init__(
        self, journal: Journal, backlog: Backlog, in_flight: InFlightLimit, clock: LineClock
    ) -> None:
        self.pauses = Pauses()
        self._journal = journal
        self._backlog = backlog
        self._in_flight = in_flight
        self._clock = clock
        self.here: frozenset[str] = frozenset()
        """The providers that this worker has."""

        self._unfollowed: int | None = None  # microseconds by which the clock was put back
        self._left_to: frozenset[tuple[int, int]] = frozenset()
        self._turn = anyio.Lock()  # so that pauses change in memory in the order of the journal

    def recover(self, left: Recovery, providers: Collection[str]) -> None:
        """Take up what an earlier run left.

        Messages go on whose pause ended meanwhile, and those of channels and providers that were removed.
        """
        self.here = frozenset(providers)
        self.pauses.replace(left.pauses, self.here)
        self._backlog.change_paused(sum(left.paused.values()))
        for waits_for in left.paused:
            if not self.pauses.is_in_force(waits_for):
                self._backlog.answered(waits_for)

    def configure(self, providers: Collection[str]) -> None:
        """Follow a change of the providers: a pause of one that isn't configured isn't in force."""
        self.here = frozenset(providers)
        self._replace(self.pauses.all)

    async def decided(self, decide: Callable[[], Awaitable[Decided]]) -> Decided:
        """Give an order to pause or to resume, and follow it.

        Raises JournalFull also while another change of what is paused waits for room.
        """
        if self._turn.locked() and self._journal.full:
            raise JournalUnreachable if self._journal.is_unreachable else JournalFull
        async with self._turn:
            decided = await decide()
            if decided.pauses is not None:
                self._replace(decided.pauses)
        return decided

    async def followed(self, follow: Callable[[], Awaitable[FromOthers]]) -> FromOthers:
        """Follow other workers' changes of what is paused, in the journal's order among this one's own."""
        async with self._turn:
            found = await follow()
            if found.pauses is not None:
                self._replace(found.pauses)
            for waits_for in found.paused or ():  # whoever had to wake them is gone
                if not self.pauses.is_in_force(waits_for):
                    self._backlog.answered(waits_for)
        return found

    def _replace(self, pauses: Sequence[Pause]) -> None:
        for waits_for in self.pauses.replace(pauses, self.here):
            self._backlog.answered(waits_for)
        self._backlog.changed.set()
        self._in_flight.freed.set()

    def note_waiting(self, steps: Sequence[Transition]) -> None:
        """Messages wait by these steps now; those go on whose pause ended while the steps were recorded."""
        for step in steps:
            if waits.is_paused(step.waits_for) and not self.pauses.is_in_force(step.waits_for or ""):
                self._backlog.answered(step.waits_for or "")

    @property
    def next_end(self) -> float:
        """When the first pause ends by itself; `inf` while an older worker ends it."""
        return math.inf if self._journal.older_workers else self.pauses.next_end

    async def end_those_over(self) -> None:
        """Resume what was paused until now."""
        await self._retime()
        now = self._clock.in_journal()
        if now < self.next_end:
            return
        async with self._turn:
            ended = [pause for pause in self.pauses.all if pause.until is not None and pause.until <= now]
            self._replace(await self._journal.end_pauses(now))
        for pause in ended:
            log(Event.PAUSE_ENDED, kind=pause.kind, key=pause.key)

    async def refresh(self) -> None:
        """Read the pauses again after messages were removed, with which their own pauses go."""
        if self.pauses.hold_messages:
            async with self._turn:
                until = 0 if self._journal.older_workers else self._clock.in_journal()
                self._replace(await self._journal.end_pauses(until))

    async def follow_clock(
        self, back: int, retime: Callable[[int | None], Awaitable[Sequence[Pause]]]
    ) -> None:
        """Let each pause last as long as ordered; the clock was put back by so much (negative: forward).

        All workers notice it, and the oldest moves the pauses. A younger one does so if the older ones end
        before they commit anything more. `retime` moves due times, and in the same commit pauses by so much.
        """
        self._leave_to_older()
        self._unfollowed = (self._unfollowed or 0) + back
        self._left_to = self._journal.older_workers
        if self._left_to:
            await retime(None)
            return
        async with self._turn:
            self._replace(await retime(self._unfollowed))
            self._unfollowed = None

    async def _retime(self) -> None:
        self._leave_to_older()
        if self._unfollowed is None or self._journal.older_workers:
            return
        async with self._turn:
            self._replace(await self._journal.retime_pauses(self._unfollowed, self._clock.shown.now))
            self._unfollowed = None

    def _leave_to_older(self) -> None:
        """An older worker that committed since then lives, and has noticed the same."""
        if self._journal.older_workers - self._left_to:
            self._unfollowed = None

    async def park(self, provider: str, pause: Pause) -> bool:
        """Let messages that wait for a provider wait for the end of a pause instead.

        Returns whether there may be more of them than this portion.
        """
        parked = await self._journal.park(pause.waits_for, waits.at(provider), PAUSE_PORTION)
        self._backlog.change(-parked)
        self._backlog.change_paused(parked)
        if not self.pauses.is_in_force(pause.waits_for):
            self._backlog.answered(pause.waits_for)
        return parked == PAUSE_PORTION

    async def look_again(self, pauses: Collection[Pause]) -> None:
        """Let all messages go on that wait for the ends of these; what can't go elsewhere is paused again."""
        waits_for = {pause.waits_for for pause in pauses}
        left = self._backlog.paused
        while waits_for and left > 0 and await self.wake(waits_for):
            left -= PAUSE_PORTION

    async def wake(self, waits_for: Collection[str]) -> bool:
        """Make a portion of messages due whose pause ended; return whether there may be more of them."""
        woken = await self._journal.wake(waits_for, self._clock.in_journal, PAUSE_PORTION)
        self._backlog.change_paused(-woken)
        self._backlog.change(woken)
        if woken:
            self._backlog.changed.set()
        return woken == PAUSE_PORTION
