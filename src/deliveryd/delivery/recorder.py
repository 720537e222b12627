"""The recorder: every call of the journal that changes messages, and what follows from it in memory.

A step is made durable first. Then places are held or freed, counts are kept, and the next loop is signalled:
the preparer for ready messages, reporting for events, the backlog's loop for what waits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.failures import Failures
from deliveryd.delivery.in_flight import InFlightLimit
from deliveryd.delivery.outbox_signals import OutboxSignals
from deliveryd.delivery.passed_time import PassedTime
from deliveryd.delivery.pausing import Pausing
from deliveryd.delivery.stopped import StopCounts, StoppedRecipients
from deliveryd.delivery.watching import Watcher
from deliveryd.errors import JournalFull
from deliveryd.journal.base import (
    Doubtful,
    FromOthers,
    Left,
    MatchedReceipt,
    OutboxRow,
    PassedDeadlines,
    Recovery,
)
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import REMOVALS, Action, Decided, Effect, Order
from deliveryd.journal.sql.own_values import SignedToken
from deliveryd.metrics import Metrics
from deliveryd.model import (
    SECOND,
    STEP,
    Clock,
    Entry,
    Malformed,
    OptOut,
    QueuedMessage,
    Reported,
    StopChange,
    Transition,
    channel_of,
)
from deliveryd.runtime.wakeup import AutoResetEvent
from deliveryd.states import ENDED, State
from deliveryd.telemetry.log_events import DEBUG, Event, enabled, log

ALL = 1 << 62
"""More messages than there are."""

WAKE_BATCH = 1000
"""How many messages one commit wakes at most."""

TOKEN_SECONDS = 3600.0
"""How long a signature's token is kept after its end, by the time that passed."""

DISK_FULL = "the journal's disk is nearly full (journal.reserve)"
UNREACHABLE = "the journal's database can't be reached (journal.url)"
TOO_MANY = "too many messages wait in the journal (queue.max_waiting)"
TOO_MANY_PAUSED = "too many messages are paused (queue.max_paused)"
"""Why nothing is taken."""

LOGGED_STATES = {
    State.SENT: Event.MESSAGE_SENT,
    State.FAILED: Event.MESSAGE_ENDED,
    State.WAITING: Event.MESSAGE_WAITING,
}

FINAL = frozenset({"sent", "delivered", "error"})
"""Statuses after which a message needs no place any more.

`sent` may have been told long before: of a message that went on, and is delivered all the same.
"""

_EVENTS = attrgetter("events")


class RefusedEvent(NamedTuple):
    """An event that the service refused: how often by now, and whether its message is set aside for it."""

    times: int
    is_set_aside: bool


class Recorder:
    """Records what happens to messages. It is built before the stations and handed to them.

    `max_waiting` bounds the backlog that allows a take, and `max_paused` the messages that are paused;
    `longest_pause` (seconds) is the longest wait that any other message may have in the journal.
    """

    def __init__(  # noqa: PLR0917 - the first six are parts, the others are limits
        self,
        journal: Journal,
        in_flight: InFlightLimit,
        outbox: OutboxSignals,
        backlog: Backlog,
        clock: Clock,
        metrics: Metrics,
        *,
        max_waiting: int,
        max_paused: int = ALL,
        longest_pause: float,
    ) -> None:
        self._journal = journal
        self.is_shared = journal.is_shared
        """Whether other workers may work on the journal at the same time."""

        self.in_flight = in_flight
        self.outbox = outbox
        self.backlog = backlog
        self.failures = Failures()
        self.stops = StopCounts()
        self.stopped = StoppedRecipients(journal.stop_key, self.stops, metrics)
        """The recipients who can't be reached on a channel any more."""

        self._clock = clock
        self._metrics = metrics
        self.pausing = Pausing(journal, backlog, in_flight, clock)
        self.pauses = self.pausing.pauses
        """What is paused."""

        self._max_waiting = max_waiting
        self._max_paused = max_paused
        self._longest_pause = int(longest_pause * SECOND)
        self._awaiting: dict[int, Entry] = {}  # taken; the service hasn't accepted their `dequeued` yet
        self._ready: list[Entry] = []
        self.ready = AutoResetEvent()
        """Set when messages became ready; `take_ready` returns them."""
        self._recovered = False
        self._watchers: tuple[Watcher, ...] = ()

    def watch(self, watcher: Watcher) -> None:
        """Tell a watcher what is recorded from now on."""
        self._watchers = (*self._watchers, watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell a watcher nothing more."""
        self._watchers = tuple(each for each in self._watchers if each is not watcher)

    @cached_property
    def passed(self) -> PassedTime:
        """How old records are."""
        return PassedTime(self._clock, self._journal.kept_clock, self._journal.last_at)

    async def note_clock(self) -> None:
        """Record what is known of the clock for the next run, if that is due."""
        if (record := self.passed.record()) is not None:
            await self._journal.keep_clock(record)

    @property
    def recovered(self) -> bool:
        """Whether recovery is complete; until then nothing else may change a message."""
        return self._recovered

    @property
    def idle(self) -> bool:
        """Whether no message is held and none waits, but those that are paused."""
        return not self.in_flight.held and not self.backlog.count

    def obstacle(self) -> str | None:
        """Why no more may be taken; None: it may."""
        if (reason := self._journal.misplaced()) is not None:
            return reason
        if self._journal.full or not self._journal.has_room():
            return self.lack
        if self.backlog.count >= self._max_waiting:
            return TOO_MANY
        if self.backlog.paused >= self._max_paused:
            return TOO_MANY_PAUSED
        return self.pauses.intake_obstacle

    @property
    def lack(self) -> str:
        """What is lacking while the journal records nothing new."""
        return UNREACHABLE if self._journal.is_unreachable else DISK_FULL

    def bound_waiting(self, max_waiting: int, max_paused: int, longest_pause: float) -> None:
        """Change the bounds of what waits; due times that are later already stay."""
        self._max_waiting = max_waiting
        self._max_paused = max_paused
        self._longest_pause = int(longest_pause * SECOND)

    # an earlier run

    async def recover(self, providers: Collection[str]) -> Recovery:
        """Take up what an earlier run left; messages in doubt are left to the caller."""
        ahead = self._journal.last_at - self._clock.now()
        await self.follow_clock(-ahead if ahead >= STEP else 0)
        left = await self._journal.recover(self._clock.now(), providers)
        self.stopped.load(await self._journal.stopped())
        self._hold(left, providers)
        self.backlog.change(left.waiting)
        self.pausing.recover(left, providers)
        self._apply(left.effects)
        return left

    def _hold(self, left: Recovery, providers: Collection[str]) -> None:
        """What was left awaits its acceptance, or is reported, in this line's hands."""
        self._awaiting.update((entry.id, entry) for entry in left.taken)
        self.in_flight.hold([*(entry.id for entry in left.taken), *left.reporting])
        self.backlog.note_short_of_room(providers)

    def open(self) -> None:
        """Recovery is complete: accept receipts and orders, look for due messages, post what waits."""
        self._recovered = True
        self.backlog.changed.set()
        self.outbox.expect_now(1)

    # other workers

    async def renew(self) -> None:
        """Return when no other worker can have taken over within the last second; see `Journal.renew`."""
        await self._journal.renew()

    async def follow(self, providers: Collection[str]) -> FromOthers:
        """Follow what other workers did since the last call; of what is adopted, doubts are the caller's.

        Messages of what is adopted may be due, and have waited long enough.
        """
        found = await self.pausing.followed(lambda: self._journal.follow(self._clock.now(), providers))
        for change in found.stops:
            self.stopped.follow(change)
        self.backlog.correct(found.waiting, None if found.paused is None else sum(found.paused.values()))
        self._apply(found.effects)
        if found.adopted is not None:
            self._hold(found.adopted, providers)
            self.backlog.change(found.adopted.waiting)
            self.backlog.change_paused(sum(found.adopted.paused.values()))
            self._apply(found.adopted.effects)
            self.outbox.expect_now(0)
        self.backlog.expect_overdue(0.0)
        self.backlog.changed.set()
        return found

    # intake

    async def take(
        self, messages: Sequence[QueuedMessage], malformed: Sequence[Malformed], lost: int = 0
    ) -> Sequence[Entry]:
        """Record a batch of the queue; return the messages that are new.

        They wait until the service has accepted their `dequeued`, which is posted at once.
        """
        at = self._clock.now()
        new = await self._journal.take(messages, malformed, at, lost)
        firsts: dict[int, QueuedMessage] = {}
        for message in messages:
            firsts.setdefault(message.id, message)
        entries = [
            Entry(*message, taken_at=at, beginning=new[message.id])
            for message in firsts.values()
            if message.id in new
        ]
        if messages or malformed:
            self._await_acceptance(entries)
        for watcher in self._watchers:
            watcher.taken(entries, at)
        return entries

    def _await_acceptance(self, entries: Sequence[Entry]) -> None:
        self._awaiting.update((entry.id, entry) for entry in entries)
        self.in_flight.hold(entry.id for entry in entries)
        self.outbox.expect_now(len(entries))

    # reporting

    async def accept(self, rows: Sequence[OutboxRow]) -> int:
        """Record that the service accepted events; return how many messages aren't set aside any more.

        Messages whose `dequeued` is among them become ready; those that ended free their places.
        """
        return self._accepted(rows, await self._journal.accept(rows, self._clock.now()))

    async def accept_early(self, rows: Sequence[OutboxRow]) -> int:
        """Do the same for events that have others ahead of them; `settle` follows once they haven't."""
        return self._accepted(rows, await self._journal.accept_early(rows, self._clock.now()))

    async def settle(self, rows: Sequence[OutboxRow]) -> None:
        """Settle events that were accepted early, and that nothing is ahead of any more."""
        await self._journal.accept(rows, self._clock.now())

    def keep_back(self, row: OutboxRow) -> None:
        """Free the place of a message that waits for nothing but an event that the service fails at."""
        if row.status == "dequeued" or row.status in FINAL:
            self.in_flight.release([row.message_id])

    def _accepted(self, rows: Sequence[OutboxRow], reopened: Sequence[Entry]) -> int:
        dequeued = [row.message_id for row in rows if row.status == "dequeued"]
        ready = [entry for id_ in dequeued if (entry := self._awaiting.pop(id_, None))]
        self.in_flight.hold(entry.id for entry in ready)  # one at whose event the service failed has no place
        self._make_ready(ready)
        self.in_flight.release([row.message_id for row in rows if row.status in FINAL])
        if reopened:
            self._reopen(reopened)
        for watcher in self._watchers:
            watcher.reported(rows, self._clock.now())
        return len(reopened)

    def _reopen(self, entries: Sequence[Entry]) -> None:
        """Messages that were set aside may be sent: the service accepted their `dequeued`."""
        self.in_flight.hold(entry.id for entry in entries)
        self._make_ready(entries)

    async def refuse(self, row: OutboxRow, reason: str) -> RefusedEvent:
        """Record that the service refused an event for good."""
        refusals = await self._journal.refuse(row, reason, self._clock.now())
        is_set_aside = row.status == "dequeued" and row.message_id in self._awaiting
        if is_set_aside:
            del self._awaiting[row.message_id]
            self._metrics.ended(State.SET_ASIDE, None)
            self.in_flight.release([row.message_id])
        elif row.status in FINAL:
            self.in_flight.release([row.message_id])
        for watcher in self._watchers:
            watcher.refused(row, self._clock.now())
        return RefusedEvent(refusals, is_set_aside)

    # preparation and dispatch

    def take_ready(self) -> Sequence[Entry]:
        """The messages that became ready since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def _make_ready(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._ready += entries
            self.ready.set()

    def route_again(self, entries: Sequence[Entry]) -> None:
        """Have queued messages prepared anew: another provider takes them."""
        self._make_ready(entries)

    async def record(self, steps: Sequence[Transition]) -> Collection[int]:
        """Record steps of messages; return the ids of those that a receipt settled instead."""
        if not steps:
            return ()
        settled, effects = await self._journal.change(steps)
        self._apply(effects)
        if settled:
            steps = [step for step in steps if step.entry.id not in settled]
        by_state = _by_state(steps)
        self._make_ready([step.entry for step in by_state.get(State.READY, ())])
        if stay := [step.entry.id for step in by_state.get(State.SENT, ()) if step.before is State.READY]:
            self.in_flight.release(stay)  # no event of theirs will
        waiting: Sequence[Transition] = by_state.get(State.WAITING, ())
        if parked := [*waiting, *by_state.get(State.IN_DOUBT, ())]:
            waiting = await self._by_todays_clock(waiting)
            self.backlog.add(waiting)
            self.pausing.note_waiting(waiting)
            self.in_flight.release(step.entry.id for step in parked)
            self.backlog.changed.set()
        self._count(by_state)
        self._log(steps)
        if events := sum(map(len, map(_EVENTS, steps))):
            self.outbox.expect(events)
        for watcher in self._watchers:
            watcher.stepped(steps)
        return settled

    async def _by_todays_clock(self, steps: Sequence[Transition]) -> Sequence[Transition]:
        """The steps; where the clock was put back since they were made, due times that follow it.

        A full disk may lie between the making and the recording of a step, and `retime` before that.
        """
        now = self._clock.now()
        due = {
            step.entry.id: now + step.due_at - step.at
            for step in steps
            if step.due_at is not None and step.at >= now + STEP
        }
        if not due:
            return steps
        await self._journal.hasten(due)
        return [
            transitions.no_later_than(step, due[step.entry.id]) if step.entry.id in due else step
            for step in steps
        ]

    def _count(self, by_state: Mapping[State, Sequence[Transition]]) -> None:
        for state, steps in by_state.items():
            if state in ENDED:
                for provider, count in Counter(map(_ended_at, steps)).items():
                    self._metrics.ended(state, provider, count)
            if state is State.FAILED:
                self.failures.add(steps)
        delays: dict[str, list[float]] = defaultdict(list)
        for step in by_state.get(State.SENT, ()):
            entry = step.entry
            if step.before is State.SENDING and entry.provider is not None:
                delays[entry.provider].append(max(step.at - entry.taken_at, 0) / SECOND)
        for provider, seconds in delays.items():
            self._metrics.accepted_after(provider, seconds)

    def _log(self, steps: Sequence[Transition]) -> None:
        if not enabled(DEBUG):
            return
        for step in steps:
            if (event := LOGGED_STATES.get(step.after)) is not None:
                provider = step.entry.provider or "none"
                log(event, message_id=step.entry.id, channel=channel_of(provider), provider=provider)

    async def id_in_doubt(self, entry: Entry) -> str | None:
        """The provider's id of a message in doubt, if it gave one."""
        return await self._journal.id_in_doubt(entry.id, entry.key)

    # receipts and operators' orders

    async def receive(
        self, reports: Sequence[Reported], opt_outs: Sequence[OptOut] = ()
    ) -> Sequence[MatchedReceipt]:
        """Record what providers report of messages and recipients, and the steps that follow.

        The results are in the order of the reports, then of the opt-outs; all are one commit.
        Raises JournalFull when only the reserve is left: that is for outcomes, which aren't reported twice.
        """
        if not self._journal.has_room():
            raise JournalFull(self.lack)
        results = await self._journal.receive(reports, [self._as_stop(each) for each in opt_outs])
        self._apply([result.effect for result in results if result.effect is not None])
        for watcher in self._watchers:
            watcher.received(reports, results, self._clock.now())
        return results

    async def use_token(self, token: SignedToken) -> bool:
        """Whether a signature's token wasn't used for another report before; it is kept with this one.

        Raises JournalFull as `receive` does.
        """
        if not self._journal.has_room():
            raise JournalFull(self.lack)
        return await self._journal.use_token(token, self.passed.before(TOKEN_SECONDS))

    @property
    def takes_receipts(self) -> bool:
        """Whether receipts are recorded now: the start is over, and the disk has more than its reserve."""
        return self._recovered and self._journal.has_room()

    async def pass_deadlines(self, listened: int, providers: Collection[str], limit: int) -> PassedDeadlines:
        """Send messages on whose receipt deadline passed, after so many more microseconds of listening."""
        found = await self._journal.pass_deadlines(listened, self._clock.now(), providers, limit)
        if passed := sum(found.passed.values()):
            self.backlog.change(passed)
            self.backlog.changed.set()
        return found

    def _as_stop(self, report: OptOut) -> StopChange:
        digest = self.stopped.digest(report.channel, report.address)
        told = (report.channel, digest, report.at, report.stopped)
        return StopChange(*told, source="receipt", heard_at=report.heard_at, is_dated=report.is_dated)

    async def decide(self, order: Order, providers: Collection[str]) -> Decided:
        """Carry out an operator's order."""
        decide = partial(self._journal.decide, order, self._clock.now(), providers)
        is_pause = order.verb in {Action.PAUSE, Action.RESUME}
        decided = await (self.pausing.decided(decide) if is_pause else decide())
        self._apply(decided.effects)
        if order.verb in REMOVALS:
            await self.pausing.refresh()
        for watcher in self._watchers:
            watcher.decided(order, decided, self._clock.now())
        return decided

    def _apply(self, effects: Sequence[Effect]) -> None:
        """Follow steps that the journal took by receipts and orders."""
        if not effects:
            return
        for effect in effects:
            if effect.stop is not None:
                self.stopped.apply(effect.stop)
        if taken := [effect.taken for effect in effects if effect.taken is not None]:
            self._await_acceptance(taken)
        if paused := sum(effect.paused for effect in effects):
            self.backlog.change_paused(paused)
        if waiting := sum(effect.waiting for effect in effects):
            self.backlog.change(waiting)
            self.backlog.changed.set()
        ends = Counter((end, effect.provider) for effect in effects for end in effect.ended)
        for (end, provider), count in ends.items():
            self._metrics.ended(end, provider, count)
            if end is State.FAILED:
                self.failures.add_reported(count)
        if events := sum(effect.events for effect in effects):
            self.outbox.expect(events)

    # what waits

    async def fetch_due(self, now: int, room: Mapping[str, int]) -> tuple[int | None, int, int]:
        """Make due messages ready; return when the next is due, how many more are, and how many became so."""
        due = await self._journal.due(now, room)
        self._fetched(due.entries)
        return due.next_due, due.left, len(due.entries)

    async def fetch_waiting_for(self, waits_for: Sequence[str], limit: int) -> int:
        """Make messages ready that wait for one of these, the first named first; return how many."""
        entries = await self._journal.resume(waits_for, limit)
        self._fetched(entries)
        return len(entries)

    async def fetch_overdue(self, now: int) -> None:
        """Make messages ready that have waited long enough for something: most of them have expired."""
        self.backlog.begin_overdue()
        due = await self._journal.overdue(now, self.in_flight.free_for_some)
        self._fetched(due.entries)
        self.backlog.change_paused(-due.paused)
        self.backlog.change(due.paused)  # `_fetched` counted them as waiting
        if due.next_due is not None:
            self.backlog.expect_overdue(due.next_due)

    def _fetched(self, entries: Sequence[Entry]) -> None:
        self.backlog.change(-len(entries))
        self.in_flight.hold(entry.id for entry in entries)
        self._make_ready(entries)
        for watcher in self._watchers:
            watcher.due(entries, self._clock.now())

    async def wake(self, waits_for: Collection[str], seconds: float = 0.0, most: int = ALL) -> int:
        """Make messages due in `seconds` that wait for one of these; return how many, `most` at most."""
        at = self._clock.now() + int(seconds * SECOND)
        woken = 0
        while woken < most:
            portion = min(WAKE_BATCH, most - woken)
            found = await self._journal.wake(waits_for, at, portion)
            woken += found
            if found < portion:
                break
        if woken:
            self.backlog.changed.set()
        return woken

    async def release(self, provider: str) -> bool:
        """Let messages that wait for a provider be due at another one, but for what may have arrived.

        Returns whether there may be more of them than this portion.
        """
        released = await self._journal.release(provider, self._clock.now(), WAKE_BATCH)
        if released:
            self.backlog.changed.set()
        return released == WAKE_BATCH

    async def leave(self, providers: Collection[str]) -> Left:
        """Hold what is in doubt at removed providers, and let all else that waits there go elsewhere."""
        held = released = 0
        while True:
            portion = await self._journal.leave(providers, self._clock.now(), WAKE_BATCH)
            held, released = held + portion.held, released + portion.released
            self.backlog.change(-portion.held)
            if portion.released:
                self.backlog.changed.set()
            if max(portion) < WAKE_BATCH:
                return Left(held, released)

    async def held(self, providers: Collection[str]) -> Sequence[Doubtful]:
        """The messages held in doubt at these providers."""
        found: list[Doubtful] = []
        after = -ALL * 2
        while portion := await self._journal.held(providers, after, WAKE_BATCH):
            found += portion
            after = portion[-1].entry.id
        return found

    async def follow_clock(self, step: int) -> None:
        """Move due times by the microseconds that the clock was put back, and bound all of them."""
        if step:
            log(Event.CLOCK_STEPPED, seconds=step / SECOND)
        await self.note_clock()
        await self._journal.retime(max(-step, 0), self._clock.now(), self._longest_pause)
        await self.pausing.follow_clock(-step)
        self.backlog.expect_overdue(0.0)


def _ended_at(step: Transition) -> str | None:
    """The provider at which a message ended: the last one that was given up, if it is bound to none."""
    entry = step.entry
    return entry.spent[-1][0] if entry.spent and entry.provider is None else entry.provider


def _by_state(steps: Sequence[Transition]) -> Mapping[State, list[Transition]]:
    """Steps by the states that they lead to."""
    found: dict[State, list[Transition]] = defaultdict(list)
    for step in steps:
        found[step.after].append(step)
    return found
