"""The recorder: every call of the journal that changes messages, and what follows from it in memory.

A step is made durable first. Then places are held or freed, counts are kept, and the next loop is signalled:
the preparer for ready messages, reporting for events, the backlog's loop for what waits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.delivery.failures import Failures
from deliveryd.delivery.memory import LineMemory
from deliveryd.errors import JournalFull
from deliveryd.journal.base import (
    Counted,
    FromOthers,
    MatchedReceipt,
    OutboxRow,
    PassedDeadlines,
    Recovery,
)
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import REMOVALS, Action, Decided, Effect, ItemKind, Order
from deliveryd.journal.rows import by_the_clock
from deliveryd.journal.sql.own_values import SignedToken
from deliveryd.metrics import Metrics
from deliveryd.model import (
    SECOND,
    Entry,
    Malformed,
    OptOut,
    QueuedMessage,
    Reported,
    StopChange,
    Transition,
    channel_of,
)
from deliveryd.runtime import waits
from deliveryd.states import ENDED, State
from deliveryd.telemetry.log_events import DEBUG, Event, Fields, enabled, log

TOKEN_SECONDS = 3600.0
"""How long a signature's token is kept after its end, by the time that passed."""

DISK_FULL = "the journal's disk is nearly full (journal.reserve)"
UNREACHABLE = "the journal's database can't be reached (journal.url)"
"""Why nothing is taken."""

LOGGED_STATES = {
    State.SENT: Event.MESSAGE_SENT,
    State.FAILED: Event.MESSAGE_ENDED,
    State.WAITING: Event.MESSAGE_WAITING,
}

FINAL = frozenset({"sent", "delivered", "error"})
"""Statuses after which a message needs no place any more.

`sent` may have been reported long before: of a message that went on, and is delivered all the same.
"""

_EVENTS = attrgetter("events")


class RefusedEvent(NamedTuple):
    """An event that the service refused: how often by now, and whether its message is set aside for it."""

    times: int
    is_set_aside: bool


class Recorder:
    """Records what happens to messages, and has `memory` follow. It is built before the stations."""

    def __init__(self, journal: Journal, memory: LineMemory, metrics: Metrics) -> None:
        self._journal = journal
        self._memory = memory
        self._in_flight = memory.in_flight
        self._outbox = memory.outbox
        self._backlog = memory.backlog
        self._clock = memory.clock
        self._metrics = metrics
        self._failures = Failures()
        self._awaiting: dict[int, Entry] = {}  # taken; the service hasn't accepted their `dequeued` yet
        self._ahead: set[int] = set()  # those of them that were taken beyond the places
        self._recovered = False

    @property
    def recovered(self) -> bool:
        """Whether recovery is complete; until then nothing else may change a message."""
        return self._recovered

    @property
    def ahead(self) -> int:
        """How many messages without a place wait until the service accepts their `dequeued`."""
        return len(self._ahead)

    def obstacle(self) -> str | None:
        """Why no more may be taken; None: it may."""
        if (reason := self._journal.misplaced()) is not None:
            return reason
        if self._journal.full or not self._journal.has_room():
            return self.lack
        return self._backlog.obstacle or self._memory.pauses.intake_obstacle

    @property
    def lack(self) -> str:
        """What is lacking while the journal records nothing new."""
        return UNREACHABLE if self._journal.is_unreachable else DISK_FULL

    def log_counts(self) -> None:
        """Log how many messages failed, and how many recipients stopped a channel, since the last call."""
        self._failures.report()
        self._memory.stopped.log_counts()

    # an earlier run

    async def recover(self, providers: Collection[str], put_back: int = 0) -> Recovery:
        """Take up what an earlier run left; messages in doubt are left to the caller.

        `put_back`: microseconds by which the clock was put back since then; negative: forward.
        """
        left = await self._journal.recover(self._clock.now(), providers, put_back)
        self._memory.stopped.load(await self._journal.stopped())
        self._memory.limits.load(await self._journal.budget_uses(self._clock.now()), self._clock.now())
        self._hold(left, providers)
        self._backlog.change(left.waiting)
        self._memory.pausing.recover(left, providers)
        self._apply(left.effects)
        return left

    def _hold(self, left: Recovery, providers: Collection[str]) -> None:
        """What was left awaits its acceptance, or is reported, in this line's hands."""
        self._awaiting.update((entry.id, entry) for entry in left.taken)
        self._in_flight.hold(left.reporting)
        taken = [entry.id for entry in left.taken]
        places = self._in_flight.free
        self._in_flight.hold(taken[:places])
        self._ahead.update(taken[places:])
        self._backlog.note_short_of_room([*providers, waits.ANY] if left.waiting else providers)

    def open(self) -> None:
        """Recovery is complete: accept receipts and orders, look for due messages, post what waits."""
        self._recovered = True
        self._backlog.changed.set()
        self._outbox.expect_now(1)

    # other workers

    async def follow(self, providers: Collection[str]) -> FromOthers:
        """Follow what other workers did since the last call; of what is adopted, doubts are the caller's.

        Messages of what is adopted may be due, and have waited long enough.
        """
        found = await self._memory.pausing.followed(
            lambda: self._journal.follow(self._clock.now(), providers, self._clock.ahead)
        )
        for change in found.stops:
            self._memory.stopped.follow(change)
        self._backlog.correct(found.waiting, None if found.paused is None else sum(found.paused.values()))
        self._apply(found.effects)
        if found.adopted is not None:
            self._hold(found.adopted, providers)
            self._backlog.change(found.adopted.waiting)
            self._backlog.change_paused(sum(found.adopted.paused.values()))
            self._apply(found.adopted.effects)
            self._outbox.expect_now(0)
        self._backlog.expect_overdue(0.0)
        self._backlog.changed.set()
        return found

    # intake

    async def take(
        self,
        messages: Sequence[QueuedMessage],
        malformed: Sequence[Malformed],
        lost: int = 0,
        *,
        ahead: bool = False,
    ) -> Sequence[Entry]:
        """Record a batch of the queue; return the messages that are new.

        They wait until the service has accepted their `dequeued`, which is posted at once. Those that are
        taken `ahead` hold no place: they wait for one in the journal then.
        """
        at = self._clock.now()
        new = await self._journal.take(messages, malformed, at, lost)
        firsts: dict[int, QueuedMessage] = {}
        for message in messages:
            firsts.setdefault(message.id, message)
        entries = [
            Entry(*message, taken_at=at, generation=new[message.id])
            for message in firsts.values()
            if message.id in new
        ]
        if ahead:
            self._ahead.update(entry.id for entry in entries)
        if messages or malformed:
            self._await_acceptance(entries)
        for watcher in self._memory.watchers:
            watcher.taken(entries, at)
        return entries

    def _await_acceptance(self, entries: Sequence[Entry]) -> None:
        self._awaiting.update((entry.id, entry) for entry in entries)
        self._in_flight.hold(entry.id for entry in entries if entry.id not in self._ahead)
        self._outbox.expect_now(len(entries))

    # reporting

    async def accept(self, rows: Sequence[OutboxRow]) -> int:
        """Record that the service accepted events; return how many messages aren't set aside any more.

        Messages whose `dequeued` is among them become ready; those that ended free their places.
        """
        return await self._accepted(rows, await self._journal.accept(rows, self._clock.now()))

    async def accept_early(self, rows: Sequence[OutboxRow]) -> int:
        """Do the same for events that have others ahead of them; `settle` follows once they haven't."""
        return await self._accepted(rows, await self._journal.accept_early(rows, self._clock.now()))

    async def settle(self, rows: Sequence[OutboxRow]) -> None:
        """Settle events that were accepted early, and that nothing is ahead of any more."""
        await self._journal.accept(rows, self._clock.now())

    def keep_back(self, row: OutboxRow) -> None:
        """Free the place of a message that waits for nothing but an event that the service fails at."""
        if row.status == "dequeued" or row.status in FINAL:
            self._in_flight.release([row.message_id])
            self._ahead.discard(row.message_id)

    async def _accepted(self, rows: Sequence[OutboxRow], reopened: Sequence[Entry]) -> int:
        dequeued = [row.message_id for row in rows if row.status == "dequeued"]
        ready = [entry for entry in map(self._awaiting.pop, dequeued, repeat(None)) if entry]
        ahead: Sequence[Entry] = ()
        if self._ahead:
            ahead = [entry for entry in ready if entry.id in self._ahead]
            ready = [entry for entry in ready if entry.id not in self._ahead]
        self._in_flight.hold(
            entry.id for entry in ready
        )  # one at whose event the service failed has no place
        self._memory.ready.add(ready)
        self._in_flight.release([row.message_id for row in rows if row.status in FINAL])
        self._in_flight.hold(entry.id for entry in reopened)
        self._memory.ready.add(reopened)
        for watcher in self._memory.watchers:
            watcher.reported(rows, self._clock.now())
        if ahead:
            await self._have_wait_for_places(ahead)
        return len(reopened)

    async def _have_wait_for_places(self, ahead: Sequence[Entry]) -> None:
        """Have messages that were taken ahead wait; later it is seen whether they expired meanwhile."""
        now = self._clock.now()
        until = now + int(waits.LONGEST_ANSWER_WAIT * SECOND)
        await self.record([transitions.deferred(entry, now, until, waits.room(waits.ANY)) for entry in ahead])
        self._ahead.difference_update(entry.id for entry in ahead)

    async def refuse(self, row: OutboxRow, reason: str) -> RefusedEvent:
        """Record that the service refused an event for good."""
        refusals = await self._journal.refuse(row, reason, self._clock.now())
        is_set_aside = row.status == "dequeued" and row.message_id in self._awaiting
        if is_set_aside:
            del self._awaiting[row.message_id]
            self._ahead.discard(row.message_id)
            self._metrics.ended(State.SET_ASIDE, None)
            self._in_flight.release([row.message_id])
        elif row.status in FINAL:
            self._in_flight.release([row.message_id])
        for watcher in self._memory.watchers:
            watcher.refused(row, self._clock.now())
        return RefusedEvent(refusals, is_set_aside)

    # preparation and dispatch

    async def record(self, steps: Sequence[Transition]) -> Collection[int]:
        """Record steps of messages; return the ids of those whose step wasn't taken.

        A receipt settled them instead, or their intents would have exceeded a limit: these are routed again.
        """
        if not steps:
            return ()
        by_state = _by_state(steps)
        ahead_of = self._clock.reading() if State.WAITING in by_state else None
        settled, effects, counted = await self._journal.change(steps, ahead_of)
        self._apply(effects)
        if self._memory.limits.any:
            settled = {*settled, *self._follow_limits(steps, counted)}
        if settled:
            steps = [step for step in steps if step.entry.id not in settled]
            by_state = _by_state(steps)
        self._memory.ready.add([step.entry for step in by_state.get(State.READY, ())])
        if stay := [step.entry.id for step in by_state.get(State.SENT, ()) if not step.events]:
            self._in_flight.release(stay)  # no event of theirs will
        waiting: Sequence[Transition] = by_state.get(State.WAITING, ())
        if parked := [*waiting, *by_state.get(State.IN_DOUBT, ())]:
            if ahead_of is not None:
                waiting = by_the_clock(waiting, ahead_of)
            self._backlog.add(waiting)
            self._memory.pausing.note_waiting(waiting)
            self._in_flight.release(step.entry.id for step in parked)
            self._backlog.changed.set()
        self._count(by_state)
        self._log(steps)
        if events := sum(map(len, map(_EVENTS, steps))):
            self._outbox.expect(events)
        for watcher in self._memory.watchers:
            watcher.stepped(steps)
        return settled

    def _follow_limits(self, steps: Sequence[Transition], counted: Counted) -> Collection[int]:
        """Follow what was counted; have messages routed again whose intents exceed a budget or a cap."""
        limits, refused = self._memory.limits, counted.refused
        limits.given_back(steps)
        limits.note(counted)
        if limits.freed:
            self._backlog.changed.set()
        if refused:
            self._memory.ready.add(
                [step.claim.entry for step in steps if step.claim is not None and step.entry.id in refused]
            )
        return refused

    def _count(self, by_state: Mapping[State, Sequence[Transition]]) -> None:
        for state, steps in by_state.items():
            if state in ENDED:
                for provider, count in Counter(map(_ended_at, steps)).items():
                    self._metrics.ended(state, provider, count)
            if state is State.FAILED:
                self._failures.add(steps)
        delays: dict[str, list[float]] = defaultdict(list)
        sent_in_part = (step for step in by_state.get(State.WAITING, ()) if step.events)
        for step in (*by_state.get(State.SENT, ()), *sent_in_part):
            entry = step.entry
            if step.before is State.SENDING and entry.provider is not None and step.events:
                delays[entry.provider].append(max(step.at - entry.taken_at, 0) / SECOND)
        for provider, seconds in delays.items():
            self._metrics.accepted_after(provider, seconds)

    def _log(self, steps: Sequence[Transition]) -> None:
        if not enabled(DEBUG):
            return
        for step in steps:
            if (event := LOGGED_STATES.get(step.after)) is not None:
                provider = step.entry.provider or "none"
                fields = Fields(message_id=step.entry.id, channel=channel_of(provider), provider=provider)
                if step.waits_for is not None:
                    fields["reason"] = f"waits for {waits.awaited(step.waits_for)}"
                log(event, **fields)

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
        async with self._memory.stopped.turn if opt_outs else nullcontext():
            results = await self._journal.receive(reports, [self._as_stop(each) for each in opt_outs])
            self._apply([result.effect for result in results if result.effect is not None])
        for watcher in self._memory.watchers:
            watcher.received(reports, results, self._clock.now())
        return results

    async def use_token(self, token: SignedToken) -> bool:
        """Whether a signature's token wasn't used for another report before; it is kept with this one.

        Raises JournalFull as `receive` does.
        """
        if not self._journal.has_room():
            raise JournalFull(self.lack)
        return await self._journal.use_token(token, self._memory.passed.before(TOKEN_SECONDS))

    @property
    def takes_receipts(self) -> bool:
        """Whether receipts are recorded now: the start is over, and the disk has more than its reserve."""
        return self._recovered and self._journal.has_room()

    async def pass_deadlines(self, listened: int, providers: Collection[str], limit: int) -> PassedDeadlines:
        """Send messages on whose receipt deadline passed, after this many more microseconds of listening."""
        found = await self._journal.pass_deadlines(listened, self._clock.now(), providers, limit)
        if passed := sum(found.passed.values()):
            self._backlog.change(passed)
            self._backlog.changed.set()
        return found

    def _as_stop(self, report: OptOut) -> StopChange:
        digest = self._memory.stopped.digest(report.channel, report.address)
        told = (report.channel, digest, report.at, report.stopped)
        return StopChange(*told, source="receipt", heard_at=report.heard_at, is_dated=report.is_dated)

    async def decide(self, order: Order, providers: Collection[str]) -> Decided:
        """Carry out an operator's order."""
        is_pause = order.verb in {Action.PAUSE, Action.RESUME}

        async def decide() -> Decided:
            at = self._clock.in_journal() if is_pause else self._clock.now()
            return await self._journal.decide(order, at, providers)

        async with self._memory.stopped.turn if order.kind is ItemKind.RECIPIENT else nullcontext():
            decided = await (self._memory.pausing.decided(decide) if is_pause else decide())
            self._apply(decided.effects)
        if order.verb in REMOVALS:
            await self._memory.pausing.refresh()
        for watcher in self._memory.watchers:
            watcher.decided(order, decided, self._clock.now())
        return decided

    def _apply(self, effects: Sequence[Effect]) -> None:
        """Follow steps that the journal took by receipts and orders."""
        if not effects:
            return
        for effect in effects:
            if effect.stop is not None:
                self._memory.stopped.apply(effect.stop)
        if taken := [effect.taken for effect in effects if effect.taken is not None]:
            self._await_acceptance(taken)
        if paused := sum(effect.paused for effect in effects):
            self._backlog.change_paused(paused)
        if waiting := sum(effect.waiting for effect in effects):
            self._backlog.change(waiting)
            self._backlog.changed.set()
        ends = Counter((end, effect.provider) for effect in effects for end in effect.ended)
        for (end, provider), count in ends.items():
            self._metrics.ended(end, provider, count)
            if end is State.FAILED:
                self._failures.add_reported(count)
        if events := sum(effect.events for effect in effects):
            self._outbox.expect(events)
        self._note_times(effects)

    def _note_times(self, effects: Sequence[Effect]) -> None:
        """Note how long deliveries took: from the sending to the instant that is reported, or its arrival."""
        for effect in effects:
            if effect.delivered is None or effect.provider is None:
                continue
            sent_at, reported_at = effect.delivered
            since = self._memory.passed.since(sent_at)
            seconds = max(since - max(self._clock.now() - reported_at, 0), 0) / SECOND
            self._metrics.delivered_after(effect.provider, seconds)
            self._memory.shares.note(effect.provider, seconds)


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
