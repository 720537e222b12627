"""The line: the whole life of a message, from the queue to the last reported event.

    GET /queue ─► journal ─► POST /events ─► settings ─► expiry ─► render ─► lane ─► journal ─► POST /events
      intake     (durable)    dequeued     (disk cache)                   (channel) (durable)   sent | error

Only this module knows the order. Each step hands on frozen values; every step of a message goes through
`record`, which makes it durable first and lets the next station know of it afterwards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import anyio

from deliveryd.delivery.clock_steps import StepWatch
from deliveryd.delivery.dispatcher import KEPT, SECOND, Dispatcher, bounded
from deliveryd.delivery.failures import Failures
from deliveryd.delivery.intake import InFlightLimit, Intake
from deliveryd.delivery.preparation import ALL, Deferred, Prepared, Preparer
from deliveryd.delivery.reporting import Reporting
from deliveryd.delivery.routing import Undeliverable
from deliveryd.journal.base import Doubtful, Journal, OutboxRow
from deliveryd.journal.orders import Effect
from deliveryd.metrics import Metrics
from deliveryd.model import STEP, Clock, Entry, Outcome, StatusEvent, Transition
from deliveryd.runtime import waits
from deliveryd.runtime.waiting import HEARTBEAT_INTERVAL, AutoResetEvent, Heartbeats
from deliveryd.states import ENDED, State
from deliveryd.telemetry import DEBUG, Event, enabled, log

IDLE_CHECK = 0.05
SHORT_OF_ROOM = 0.1
"""Seconds until it is looked again for waiting messages that there was no room for."""

LOOKED_AT = 100
PROBE_PAUSE = 1.0
"""How many messages that are due for a provider which is left alone are looked at, and how often (seconds):
they may have expired, take their turns as probes, or wait for its lane."""

WOKEN_TOGETHER = 1000
"""How many messages one commit wakes at most."""

WARN_AT = (0.5, 0.8)
LESS = 0.05
"""Shares of `queue.max_waiting` at which a warning is logged, and by how much it falls before the next."""

LOGGED_STATES = {
    State.SENT: Event.MESSAGE_SENT,
    State.FAILED: Event.MESSAGE_ENDED,
    State.WAITING: Event.MESSAGE_WAITING,
}

DISK_FULL = "the journal's disk is nearly full (journal.reserve)"
TOO_MANY = "too many messages wait in the journal (queue.max_waiting)"
"""Why nothing is taken."""

WORKER_ENDED = "the worker ended before the outcome was known"

FINAL = frozenset({"sent", "error"})
"""Statuses after which a message holds no place any more."""


class Pipeline:
    """The stations of the line, in their order.

    `intake`, `reporting` and `lanes` are assigned while it is put together, since they call back into it.
    """

    intake: Intake
    reporting: Reporting
    lanes: Mapping[str, Dispatcher]

    def __init__(  # noqa: PLR0917 - all are parts of the line
        self,
        journal: Journal,
        preparation: Preparer,
        in_flight: InFlightLimit,
        clock: Clock,
        metrics: Metrics,
        heartbeats: Heartbeats,
        *,
        max_waiting: int,
        longest_pause: float,
    ) -> None:
        self._journal = journal
        self.preparation = preparation
        self._in_flight = in_flight
        self._clock = clock
        self._metrics = metrics
        self._heartbeats = heartbeats
        self.failures = Failures()
        self._max_waiting = max_waiting
        self._longest_pause = int(longest_pause * SECOND)
        self._steps = StepWatch(clock)
        self._waiting = 0
        self._held_until: float = 0.0  # when the next message may be due that waits for something
        self._look_again: dict[str, float] = {}  # lanes that are open: when, by the loop's time
        self._want_room: set[str] = set()  # lanes for whose room messages may wait
        self._working_again: set[str] = set()  # channels whose provider answers after an outage
        self._short = 0  # messages that could go on, but for places
        self._level = 0
        self._awaiting: dict[int, Entry] = {}  # taken; the service hasn't accepted their `dequeued` yet
        self._ready: list[Entry] = []
        self._ready_event = AutoResetEvent()
        self._due_event = AutoResetEvent()
        self._settled: list[Transition] = []
        self._settled_event = AutoResetEvent()
        self._settling = anyio.Lock(fast_acquire=True)
        self._taken_last = anyio.Event()
        self._is_misplaced = False
        self.recovered = False
        """Whether what an earlier run left was taken up; until then nothing else may move a message."""

    async def recover(self) -> None:
        """Take up what an earlier run left in the journal, before anything else."""
        ahead = self._journal.last_at - self._clock.now()
        await self._follow_clock(-ahead if ahead >= STEP else 0)
        left = await self._journal.recover(self._clock.now(), self.lanes)
        self._awaiting = {entry.id: entry for entry in left.taken}
        self._in_flight.hold([*self._awaiting, *left.reporting])
        self._waiting = left.waiting
        self._want_room.update(self.lanes)
        await self.record(
            [transition for doubtful in left.doubtful if (transition := self._after_crash(doubtful))]
        )
        for name in self.lanes:  # a few find out whether its provider works by now; the others wait for that
            await self._wake([waits.recovery(name)], most=KEPT)
        self.recovered = True
        self._due_event.set()
        self.reporting.expect_now(1)
        if left.taken or left.doubtful or left.waiting or left.reporting:
            log(Event.JOURNAL_RECOVERED, count=len(left.taken) + left.waiting, in_flight=len(left.doubtful))

    def _after_crash(self, doubtful: Doubtful) -> Transition | None:
        """What a try without an outcome comes to, or one that was held, by the policy of its channel.

        Without its channel it is held. It uses up no try: that the worker ended isn't the provider's fault.
        """
        entry, state, reason = doubtful
        now = self._clock.now()
        lane = self.lanes.get(entry.channel or "")
        if state is State.IN_DOUBT:
            return None if lane is None else lane.after_hold(entry, reason or "", now)
        if lane is not None:
            return lane.after_doubt(entry, WORKER_ENDED, now)
        outcome = Outcome("in_doubt", None, WORKER_ENDED)
        return Transition(entry._replace(doubt=True), state, State.IN_DOUBT, now, outcome=outcome)

    # 1. from the queue into the journal: `Intake` takes and records, then calls

    async def take(self) -> None:
        """Take until the end begins."""
        await self.intake.run()
        self._heartbeats.forget("intake")
        self._taken_last.set()

    def taken(self, entries: Sequence[Entry]) -> None:
        """These messages are in the journal; they wait until the service has accepted their `dequeued`."""
        self._awaiting.update((entry.id, entry) for entry in entries)
        self._in_flight.hold(entry.id for entry in entries)
        self.reporting.expect_now(len(entries))

    def obstacle(self) -> str | None:
        """Why the journal can't take in more; None: it can."""
        if (reason := self._journal.misplaced()) is not None:
            return reason
        if self._journal.full or not self._journal.has_room():
            return DISK_FULL
        if self._waiting >= self._max_waiting:
            return TOO_MANY
        return None

    def _watch_journal(self) -> None:
        """Say once when the journal's file is gone from its place, and once when it is back."""
        reason = self._journal.misplaced()
        if (reason is not None) is self._is_misplaced:
            return
        self._is_misplaced = reason is not None
        if reason is not None:
            log(Event.JOURNAL_MISPLACED, reason=reason)
        else:
            log(Event.JOURNAL_IN_PLACE)

    def short_of(self, in_flight: int) -> None:
        """Intake waits for so many places: as many ends free them, once the service has heard of these."""
        self.reporting.hasten(in_flight)

    # 2. from the journal to the service: `Reporting` posts, then calls

    def accepted(self, rows: Sequence[OutboxRow]) -> None:
        """The service accepted these events: who was taken may be sent now, who ended gives up a place."""
        dequeued = [row.message_id for row in rows if row.status == "dequeued"]
        self._make_ready([entry for id_ in dequeued if (entry := self._awaiting.pop(id_, None))])
        self._in_flight.release(row.message_id for row in rows if row.status in FINAL)

    def refused(self, row: OutboxRow) -> None:
        """The service refused this event for good; it lies in the journal with its reason."""
        if row.status == "dequeued" and row.message_id in self._awaiting:
            del self._awaiting[row.message_id]
            reason = "the service refused its dequeued event"
            log(Event.MESSAGE_SET_ASIDE, message_id=row.message_id, reason=reason)
            self._metrics.ended(State.SET_ASIDE)
            self._in_flight.release([row.message_id])
        elif row.status in FINAL:
            self._in_flight.release([row.message_id])

    def reopened(self, entries: Sequence[Entry]) -> None:
        """The service accepted the `dequeued` of messages that were set aside: they may be sent after all."""
        log(Event.MESSAGE_REOPENED, count=len(entries))
        self._in_flight.hold(entry.id for entry in entries)
        self._make_ready(entries)

    # 3. settings, customer, expiry, language, channel, text: `Preparer` finds them all, then calls

    async def deliver(self) -> None:
        """Bring ready messages to their lanes, as each is prepared."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.preparation.run, self._wake)
            while True:
                self._heartbeats.beat("delivery")
                await self._ready_event.wait()
                ready, self._ready = self._ready, []
                self.preparation.prepare(ready, self._hand_over, tasks)

    # 4. to the channel: the lane commits the intent, sends, and settles

    async def _hand_over(self, prepared: Sequence[Prepared]) -> None:
        """Put messages into their lanes, and record the steps that the others take instead."""
        steps = [step for message in prepared if (step := self._offer(message)) is not None]
        await self.record(steps)
        if waits_for := {step.waits_for for step in steps if step.waits_for is not None}:
            self.preparation.now_waiting(waits_for)

    def _offer(self, message: Prepared) -> Transition | None:
        """Put a message into its lane; or the step that it takes instead."""
        if isinstance(message, Undeliverable):
            return self._failed(message.entry, message.details)
        if isinstance(message, Deferred):
            return self._put_off(message)
        lane = self.lanes[message.channel]
        return None if lane.offer(message) else lane.put_off(message)

    def _put_off(self, message: Deferred) -> Transition:
        now = self._clock.now()
        due_at = bounded(now + int(message.seconds * SECOND), message.expires_at)
        return Transition(message.entry, State.READY, State.WAITING, now, due_at, waits_for=message.waits_for)

    def settle(self, transition: Transition) -> None:
        """What became of an attempt; recorded together with all that came in meanwhile."""
        self._settled.append(transition)
        self._settled_event.set()

    async def record_settled(self) -> None:
        """Make outcomes durable, as many at a time as there are."""
        while True:
            self._heartbeats.beat("settling")
            await self._settled_event.wait()
            await self._record_settled()

    async def _record_settled(self) -> None:
        async with self._settling:  # a full disk may hold up one round, and the end waits for it
            settled, self._settled = self._settled, []
            await self.record(settled)

    def moved(self, effects: Sequence[Effect]) -> None:
        """Messages took steps that the line didn't take: by a provider's receipt, or an operator's order."""
        if taken := [effect.taken for effect in effects if effect.taken is not None]:
            self.taken(taken)
        if waiting := sum(effect.waiting for effect in effects):
            self._waiting += waiting
            self._due_event.set()
        for end, count in Counter(end for effect in effects for end in effect.ended).items():
            self._metrics.ended(end, count)
            if end is State.FAILED:
                self.failures.add_reported(count)
        if events := sum(effect.events for effect in effects):
            self.reporting.expect(events)

    # 5. what waits in the journal comes back when its time has come

    async def wake_due(self) -> None:
        """Fetch waiting messages whose time has come, where there are places for them."""
        pause = 0.0
        while True:
            self._heartbeats.beat("due")
            await self._due_event.wait(min(max(pause, 0.01), HEARTBEAT_INTERVAL))
            self._watch_journal()
            if step := self._steps.stepped():
                await self._follow_clock(step)
            if self._working_again:
                channels, self._working_again = self._working_again, set()
                await self._wake([waits.recovery(name) for name in channels])
            pause = await self._fetch_due()
            await self._warn_of_many()

    async def _wake(self, waits_for: Collection[str], seconds: float = 0.0, most: int = ALL) -> int:
        """Let messages go on that wait for one of these, after so many seconds; return how many."""
        at = self._clock.now() + int(seconds * SECOND)
        woken = 0
        while woken < most:
            portion = min(WOKEN_TOGETHER, most - woken)
            found = await self._journal.wake(waits_for, at, portion)
            woken += found
            if found < portion:
                break
        if woken:
            self._due_event.set()
        return woken

    def works_again(self, channel: str) -> None:
        """A channel's provider works again: those go on that it had asked to wait."""
        self._working_again.add(channel)
        self._due_event.set()

    async def _follow_clock(self, step: int) -> None:
        """Bring what waits in line with a clock that was put right: else it would wait for as long again."""
        if step:
            log(Event.CLOCK_STEPPED, seconds=step / SECOND)
        await self._journal.retime(max(-step, 0), self._clock.now() + self._longest_pause)
        self._held_until = 0.0

    async def _fetch_due(self) -> float:
        """Fetch what is due; return the seconds until more may be."""
        self._short = 0
        pause = HEARTBEAT_INTERVAL
        if self._waiting:
            pauses = [await self._fetch_due_of(name, lane) for name, lane in self.lanes.items()]
            pause = min(*pauses, await self._fetch_due_without_lane(), await self._fetch_overdue())
        self._in_flight.owed = self._short
        return pause

    async def _fetch_due_of(self, name: str, lane: Dispatcher) -> float:
        """Fetch what is due of one lane, then what waits for room in it: each sees the places that are left.

        What finds none is owed some of those that are freed next.
        """
        if lane.is_open:
            lane.owed = 0
            return await self._look_at(name, lane)
        room = min(lane.room_to_fetch, self._in_flight.free)
        pause, left = await self._fetch({name: room})
        room = min(lane.room_to_fetch, self._in_flight.free)
        if name in self._want_room and not left:
            left = await self._fetch_for_room(name, room)
        lane.owed = left if len(self.lanes) > 1 else 0  # one alone has room for whoever holds a place
        self._short += min(left, lane.room_to_fetch)
        return SHORT_OF_ROOM if left else pause

    async def _fetch_for_room(self, name: str, room: int) -> int:
        """Fetch what waits for room in a lane, repeats first; return how many more may, at most."""
        if room:
            self._want_room.discard(name)  # before it is looked: others may begin to wait meanwhile
            found = await self._journal.resume([waits.repeat(name), waits.room(name)], room)
            self._fetched(found)
            if len(found) < room:
                return 0
            self._want_room.add(name)
        return self.lanes[name].share

    async def _look_at(self, name: str, lane: Dispatcher) -> float:
        """Fetch a few of a lane whose provider is left alone, seldom: most of it is put off again."""
        now = anyio.current_time()
        if (wait := self._look_again.get(name, now) - now) > 0:
            return wait
        self._look_again[name] = now + PROBE_PAUSE
        if free := self._in_flight.free_for_some:
            await self._fetch({name: min(LOOKED_AT, free)})
        room = LOOKED_AT if lane.refuses_all else lane.room_to_fetch
        if name in self._want_room and (room := min(room, self._in_flight.free_for_some)):
            await self._fetch_for_room(name, room)
        return PROBE_PAUSE

    async def _fetch_due_without_lane(self) -> float:
        """Fetch what is due and bound to no lane, into a part of the places: it may have to wait again."""
        pause, left = await self._fetch({"": self._in_flight.free_for_some})
        self._short += left
        return SHORT_OF_ROOM if left else pause

    async def _fetch_overdue(self) -> float:
        """Fetch those that wait for something, and have waited for long enough: most of them have expired."""
        now = self._clock.now()
        if now >= self._held_until:
            self._held_until = math.inf  # before it is looked: others may begin to wait meanwhile
            due = await self._journal.overdue(now, self._in_flight.free_for_some)
            self._fetched(due.entries)
            if due.next_due is not None:
                self._held_until = min(self._held_until, due.next_due)
        return max((self._held_until - now) / SECOND, SHORT_OF_ROOM)

    async def _fetch(self, room: Mapping[str, int]) -> tuple[float, int]:
        """Fetch what is due; return the seconds until more is, and how many more are already."""
        now = self._clock.now()
        due = await self._journal.due(now, room)
        self._fetched(due.entries)
        if due.entries or due.left:
            return SHORT_OF_ROOM, due.left
        return (HEARTBEAT_INTERVAL if due.next_due is None else (due.next_due - now) / SECOND), 0

    def _fetched(self, entries: Sequence[Entry]) -> None:
        self._waiting -= len(entries)
        self._in_flight.hold(entry.id for entry in entries)
        self._make_ready(entries)

    async def _warn_of_many(self) -> None:
        """Say once, each time that it comes to it, that many messages wait, and what most wait for."""
        share = self._waiting / self._max_waiting
        level = sum(share >= each for each in WARN_AT)
        if level > self._level:
            cause, count = await self._journal.largest_cause()
            log(
                Event.JOURNAL_FILLING,
                waiting=self._waiting, limit=self._max_waiting, reason=f"{count} of them wait for {cause}",
            )  # fmt: skip
        if level > self._level or share < WARN_AT[self._level - 1] - LESS:
            self._level = level

    # the end

    async def until_idle(self) -> None:
        """Return when the queue was empty, messages ended or are held in doubt, and events are accepted.

        Nothing more is taken then.
        """
        while not (self._taken_last.is_set() and await self._is_idle()):
            if self.intake.found_empty and await self._is_idle():
                self.intake.stop()  # a take that is under way may bring something after all
                await self._taken_last.wait()
            else:
                await anyio.sleep(IDLE_CHECK)

    async def _is_idle(self) -> bool:
        if self._in_flight.held or self._waiting or self._journal.misplaced() is not None:
            return False
        counts = await self._journal.counts()
        return not counts.events_waiting and not counts.states.keys() - {State.IN_DOUBT}

    async def drain(self) -> None:
        """Finish what is under way, a take among it, begin nothing new, and report all of it."""
        self.intake.stop()
        for lane in self.lanes.values():
            lane.stop()
        for lane in self.lanes.values():
            await lane.finish()
        await self._record_settled()
        self.reporting.hurry()
        await self._taken_last.wait()  # what it brings isn't given again
        await self.reporting.flushed()

    # every step of a message

    async def record(self, transitions: Sequence[Transition]) -> Collection[int]:
        """Make steps durable, then let the stations know; return the ids of those that a receipt settled."""
        if not transitions:
            return ()
        settled, effects = await self._journal.change(transitions)
        self.moved(effects)
        if settled:
            transitions = [transition for transition in transitions if transition.entry.id not in settled]
        self._make_ready([transition.entry for transition in transitions if transition.after is State.READY])
        parked = [
            transition.entry.id
            for transition in transitions
            if transition.after in (State.WAITING, State.IN_DOUBT)
        ]
        if parked:
            transitions = await self._by_todays_clock(transitions)
            self._note_waiting(
                [transition for transition in transitions if transition.after is State.WAITING]
            )
            self._in_flight.release(parked)
            self._due_event.set()
        self._tell(transitions)
        if events := sum(len(transition.events) for transition in transitions):
            self.reporting.expect(events)
        return settled

    async def _by_todays_clock(self, transitions: Sequence[Transition]) -> Sequence[Transition]:
        """The steps; what waits does so from now on, if the clock was put back since that was decided.

        A full disk may lie between the decision and the record, which `retime` came before.
        """
        now = self._clock.now()
        due = {
            transition.entry.id: now + transition.due_at - transition.at
            for transition in transitions
            if transition.due_at is not None and transition.at >= now + STEP
        }
        if not due:
            return transitions
        await self._journal.hasten(due)
        return [
            transition._replace(due_at=due.get(transition.entry.id, transition.due_at))
            for transition in transitions
        ]

    def _note_waiting(self, transitions: Sequence[Transition]) -> None:
        self._waiting += len(transitions)
        for transition in transitions:
            if transition.waits_for is not None and transition.due_at is not None:
                self._held_until = min(self._held_until, transition.due_at)
                if transition.entry.channel is not None:
                    self._want_room.add(transition.entry.channel)

    def _tell(self, transitions: Sequence[Transition]) -> None:
        for state, count in Counter([transition.after for transition in transitions]).items():
            if state in ENDED:
                self._metrics.ended(state, count)
            if state is State.FAILED:
                self.failures.add(transitions)
        for transition in transitions:
            if transition.after is State.SENT:
                self._metrics.accepted_after(max(transition.at - transition.entry.taken_at, 0) / SECOND)
        if enabled(DEBUG):
            for transition in transitions:
                if (event := LOGGED_STATES.get(transition.after)) is not None:
                    log(event, message_id=transition.entry.id, channel=transition.entry.channel or "none")

    def _make_ready(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._ready += entries
            self._ready_event.set()

    def _failed(self, entry: Entry, details: str) -> Transition:
        now = self._clock.now()
        events = (StatusEvent(entry.id, "error", now, details=details),)
        return Transition(entry.ended(), State.READY, State.FAILED, now, events=events)
