"""The writes of messages that wait in the journal: made ready, woken, released, held; and their due times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from deliveryd.delivery.memory import LineMemory
from deliveryd.journal.base import Doubtful, FetchPortion
from deliveryd.journal.journal import Journal
from deliveryd.journal.pauses import Pause
from deliveryd.model import SECOND, Entry
from deliveryd.runtime import waits
from deliveryd.telemetry.log_events import Event, log

ALL = 1 << 62
"""More messages than there are."""

WAKE_BATCH = 1000
"""How many messages one commit wakes at most."""


class Waiting:
    """Lets messages go on that wait in the journal, and has `memory` follow.

    `longest_pause` (seconds) is the longest wait that any message may have which isn't paused.
    """

    def __init__(self, journal: Journal, memory: LineMemory, longest_pause: float) -> None:
        self._journal = journal
        self._memory = memory
        self._backlog = memory.backlog
        self._in_flight = memory.in_flight
        self._clock = memory.clock
        self.bound(longest_pause)

    def bound(self, longest_pause: float) -> None:
        """Bound waits by so many seconds from now on; due times that are later already stay."""
        self._longest_pause = int(longest_pause * SECOND)

    async def fetch_due(self, now: int, room: Mapping[str, int]) -> tuple[int | None, int, int]:
        """Make due messages ready; return when the next is due, how many more are, and how many became so."""
        due = await self._journal.due(now, room)
        self._fetched(due.entries)
        return due.next_due, due.left, len(due.entries)

    async def fetch_waiting_for(
        self, waits_for: Sequence[str], portions: Sequence[FetchPortion]
    ) -> Sequence[Entry]:
        """Make messages ready that wait for one of these, see `Journal.resume`; return them."""
        entries = await self._journal.resume(waits_for, portions)
        self._fetched(entries)
        return entries

    async def have_wait_for_room(self, provider: str, now: int) -> int:
        """Have a batch of what is due at a provider wait for room there; return how many."""
        moved = await self._journal.have_wait_for_room(provider, now, WAKE_BATCH)
        if moved:
            self._backlog.note_short_of_room([provider])
            self._backlog.expect_overdue(now + int(waits.LONGEST_ANSWER_WAIT * SECOND))
        return moved

    async def fetch_overdue(self, now: int) -> None:
        """Make messages ready that have waited long enough for something: most of them have expired."""
        self._backlog.begin_overdue()
        due = await self._journal.overdue(now, self._in_flight.free_for_some)
        self._fetched(due.entries)
        self._backlog.change_paused(-due.paused)
        self._backlog.change(due.paused)  # `_fetched` counted them as waiting
        if due.next_due is not None:
            self._backlog.expect_overdue(due.next_due)

    def _fetched(self, entries: Sequence[Entry]) -> None:
        self._backlog.change(-len(entries))
        self._in_flight.hold(entry.id for entry in entries)
        self._memory.ready.add(entries)
        for watcher in self._memory.watchers:
            watcher.due(entries, self._clock.now())

    async def wake(self, waits_for: Collection[str], seconds: float = 0.0, most: int = ALL) -> int:
        """Make messages due in `seconds` that wait for one of these; return how many, `most` at most."""
        pause = int(seconds * SECOND)
        woken = 0
        while woken < most:
            portion = min(WAKE_BATCH, most - woken)
            found = await self._journal.wake(waits_for, lambda: self._clock.in_journal() + pause, portion)
            woken += found
            if found < portion:
                break
        if woken:
            self._backlog.changed.set()
        return woken

    async def release(self, provider: str) -> bool:
        """Let messages that wait for a provider be due at another one, but for what may have arrived.

        Returns whether there may be more of them than this portion.
        """
        released = await self._journal.release(provider, self._clock.now(), WAKE_BATCH)
        if released:
            self._backlog.changed.set()
        return released == WAKE_BATCH

    async def leave(self, removed: Collection[str], disabled: Collection[str]) -> None:
        """Let all that isn't in doubt leave these providers; hold what is, and waits at removed ones."""
        while removed or disabled:
            portion = await self._journal.leave(removed, disabled, self._clock.now(), WAKE_BATCH)
            self._backlog.change(portion.resumed - portion.held)
            if portion.released or portion.resumed:
                self._backlog.changed.set()
            if max(portion) < WAKE_BATCH:
                break

    async def held(self, providers: Collection[str]) -> Sequence[Doubtful]:
        """The messages held in doubt at these providers."""
        found: list[Doubtful] = []
        after = -ALL * 2
        while portion := await self._journal.held(providers, after, WAKE_BATCH):
            found += portion
            after = portion[-1].entry.id
        return found

    async def follow_clock(self, step: int) -> None:
        """Move pauses and due times by the microseconds that the clock was set by (negative: back)."""
        await self._move(step, -step, -step)

    async def follow_between_runs(self, step: int, ahead: int) -> None:
        """The same for what it was set by since an earlier run.

        `ahead`: by how much due times are ahead since this run began, which is part of the step. Those of a
        shared journal are moved log by log, when a worker takes one.
        """
        await self._move(step, 0 if self._journal.is_shared else -step, ahead)

    async def _move(self, step: int, back: int, ahead: int) -> None:
        if step:
            log(Event.CLOCK_STEPPED, seconds=step / SECOND)
        then = partial(self._clock.follow, ahead)
        await self._memory.pausing.follow_clock(
            -step, partial(self._retime, back, self._memory.passed.record(), then=then, ahead=ahead)
        )
        self._backlog.expect_overdue(0.0)

    async def keep_clock(self) -> None:
        """Keep in the journal what the next run has to know of the clock, if that is due."""
        if (record := self._memory.passed.record()) is not None:
            await self._retime(0, record)

    async def bound_due_times(self) -> None:
        """Let no message wait longer than the longest pause, by whatever clock an ended worker went."""
        await self._retime(0, None)

    async def _retime(
        self,
        back: int,
        record: str | None,
        pauses_back: int | None = None,
        then: Callable[[], None] | None = None,
        ahead: int = 0,
    ) -> Sequence[Pause]:
        return await self._journal.retime(
            back,
            lambda: self._clock.in_journal() - ahead,
            self._longest_pause,
            record,
            pauses_back=pauses_back,
            then=then,
        )
