"""Dispatchers: one for each provider, with a queue, concurrency, rate and retries of its own.

A dispatcher commits the intent to send, then sends, then has the step recorded that follows from the verdict.
What is queued has no intent yet: only attempts that are under way can be in doubt after a crash. While the
provider keeps failing, a dispatcher makes no attempts but probes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from deliveryd import transitions
from deliveryd.channels.base import Channel
from deliveryd.delivery.attempts import AttemptParts, Attempts
from deliveryd.delivery.common import Common
from deliveryd.delivery.dispatch_queue import KEPT
from deliveryd.delivery.pace import Pace, SharedPace
from deliveryd.delivery.policy import DispatchPolicy
from deliveryd.delivery.probe_turns import ProbeTurns
from deliveryd.delivery.provider import Provider, wait_alone
from deliveryd.delivery.routing import Routed, is_expired
from deliveryd.delivery.terms import DispatchTerms
from deliveryd.delivery.verdicts import VerdictHandler
from deliveryd.errors import OutOfFiles
from deliveryd.journal.pauses import Pause
from deliveryd.journal.rows import digest_of
from deliveryd.model import Entry, Transition, channel_of
from deliveryd.options.units import Rate
from deliveryd.runtime import waits
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent, ParkingLot, Uses
from deliveryd.states import State

MOST_DIGESTED = 4 << 20
"""Characters whose digests are made in one turn of the event loop at most, beyond those of one message."""

MOST_BEGUN = 32 << 10
"""Characters whose attempts begin in one turn of the event loop at most, beyond those of one message."""

ATTEMPT = 256
"""Characters that an attempt counts as beside its own: even an empty message takes some time."""


class Dispatcher:
    """The attempts at one provider."""

    def __init__(self, terms: DispatchTerms, common: Common) -> None:
        recorder = common.recorder
        self._common = common
        self.name = name = terms.provider.name
        self._shared = shared = common.journal.limits
        self._turns = ProbeTurns(name, shared) if shared is not None else None
        self._channel_name = channel_of(name)
        self.loop = f"dispatcher {name}"
        self._owed = 0
        self._attempts = Attempts(name, common)
        self._clock = common.clock
        self._heartbeats = common.heartbeats
        self._in_flight = recorder.in_flight
        self._recorder = recorder
        self._stopped = recorder.stopped
        self._pauses = recorder.pauses
        self._outcomes = common.outcomes
        self._pace: Pace | SharedPace | None = None
        self._equip(terms, Uses())
        self._begun: deque[tuple[Entry, Routed, AttemptParts]] = deque()
        self._idle = ParkingLot()
        self._workers = 0
        self._under_way = 0
        self._is_recording = False
        self._wakeup = AutoResetEvent()
        self._stopping = False
        self._given_up: frozenset[str] = frozenset()  # the channel's, when the queue was routed again last
        self._comebacks = terms.choice.comebacks  # the same
        self._finished = AutoResetEvent()

    def _equip(self, terms: DispatchTerms, use: Uses) -> None:
        provider, policy = terms.provider, terms.policy
        self.terms = terms
        self._choice = terms.choice
        self.share = terms.share
        self._policy = policy
        self._intermediate = terms.intermediate
        self._pace = self._paced_by(policy.rate)
        self._queue = provider.queue
        self._provider = provider
        self._breaker = provider.breaker
        self._refusals = provider.refusals
        may_begin = partial(self._shared.lease_covers, policy.timeout) if self._shared is not None else None
        self._parts = AttemptParts(terms, VerdictHandler(terms, self._common), use, may_begin)

    def _paced_by(self, rate: Rate | None) -> Pace | SharedPace | None:
        if rate is None:
            return None
        return Pace(rate) if self._shared is None else SharedPace(self.name, rate, self._shared)

    def adopt(self, terms: DispatchTerms) -> anyio.Event | None:
        """Work by new terms from now on, with whatever is queued; attempts under way end as they began.

        With another adapter, the event is set when the last attempt of the one before has ended.
        """
        parts, queue, pace, rate = self._parts, self._queue, self._pace, self._policy.rate
        is_same = terms.channel is parts.channel
        self._equip(terms, parts.use if is_same else Uses())
        if rate == terms.policy.rate:
            self._pace = pace
        if queue is not self._queue:
            self._recorder.route_again([routed.entry for routed in queue.take_if(_all)])
        self._wakeup.set()
        return None if is_same else parts.use.retire()

    def route_all_again(self) -> None:
        """Have all that is queued routed anew, since routing or rendering have changed."""
        self._route_again(_all)

    # room

    @property
    def room(self) -> int:
        """How many more messages may be queued: up to the share, beyond it what is spare."""
        if self._breaker.is_open:
            return max(min(self.share, KEPT) - self._held, 0)
        return max(self.share - self._held, self._in_flight.spare, 0)

    @property
    def room_to_fetch(self) -> int:
        """How many may be fetched from the journal: they take places themselves, and must find room then."""
        if self._breaker.is_open:
            return self.room
        return max(self.share - self._held, self._in_flight.spare - 1, 0)

    @property
    def _held(self) -> int:
        return len(self._queue.new) + len(self._queue.repeats) + self._under_way

    @property
    def is_open(self) -> bool:
        """Whether the provider's breaker is open: only probes are sent."""
        return self._breaker.is_open

    @property
    def pause(self) -> Pause | None:
        """The pause of the provider or of its channel."""
        return self._pauses.at(self.name)

    @property
    def refuses_all(self) -> bool:
        """Whether the provider refuses everything, so that the settings ids take turns as probes."""
        return self._refusals.refuses_all

    @property
    def refused_settings(self) -> Collection[int]:
        """The settings ids of which the provider refuses everything: only probes of them are sent."""
        return self._refusals.waiting

    @property
    def under_way(self) -> int:
        """How many attempts have an intent and no outcome yet."""
        return self._under_way

    @property
    def queued(self) -> int:
        """How many messages wait for their attempt."""
        return len(self._queue)

    @property
    def policy(self) -> DispatchPolicy:
        """The limits of the attempts."""
        return self._policy

    @property
    def provider(self) -> Provider:
        """The provider: its breaker, and its last failure."""
        return self._provider

    @property
    def is_enabled(self) -> bool:
        """Whether the provider takes new messages."""
        return self._choice.senders[self.name].is_enabled

    def reserve(self, owed: int) -> None:
        """Leave room, up to half of the share, to so many due messages that were taken long ago."""
        self._owed = owed

    # queue

    def offer(self, routed: Routed) -> bool:
        """Queue a message; False when it can't be: there is no room, or it would be given away at once."""
        entry, queue, refusals = routed.entry, self._queue, self._refusals
        if self._is_left_over(entry) and not self._provider.is_reached:
            return False
        is_repeat = entry.was_tried
        owed = 0
        if self._owed and not is_repeat and entry.provider != self.name:  # else it waited for this room
            owed = min(self._owed, self.share // 2)
        held = len(queue.new) + len(queue.repeats) + self._under_way
        is_within_share = held + owed < self.share and not self._breaker.is_open
        if not is_within_share and self.room <= owed:
            return False
        if refusals.waiting and not self._provider.may_try(entry.settings_id):
            return False
        if refusals.refuses_all:
            queue.add_first(routed)
        else:
            queue.add(routed, queue.repeats if is_repeat else queue.new)
        self._wakeup.set()
        return True

    def route_paused(self) -> None:
        """Have queued messages prepared anew that are paused: they wait in the journal, or go elsewhere."""
        self._route_again(lambda routed: self._pauses.holding(routed.entry, self.name) is not None)

    @property
    def gives_away(self) -> bool:
        """Whether another provider takes the messages that wait for this one."""
        if self.pause is not None:
            return self._pauses.of_channel(self._channel_name) is None and self._choice.has_other(self.name)
        return self._breaker.is_open and (self._is_given_up or self._choice.has_other(self.name))

    @property
    def _is_given_up(self) -> bool:
        """Whether the provider is down for so long that what waits for it alone goes to the next channel."""
        return self.name in self._choice.given_up

    def defer(self, routed: Routed) -> Transition:
        """The step of a message that was offered in vain."""
        entry, name = routed.entry, self.name
        # No other channel can take it: the router tries them first.
        if self.is_open and self._is_given_up and not entry.doubt:
            return wait_alone(routed, self._clock.now())
        if self._is_left_over(entry):
            return wait_alone(routed, self._clock.now())
        if self._choice.has_other_for(entry, name) and not self._choice.can_move(
            entry, routed.customer, name
        ):
            return wait_alone(routed, self._clock.now())
        return self._provider.defer(routed)

    # stop taking, stop working

    def leave(self) -> Sequence[Entry]:
        """Begin no more attempts, since the provider is removed; return what was queued."""
        self.stop()
        return [routed.entry for routed in self._queue.take_if(_all)]

    def stop(self) -> None:
        """Begin no more attempts."""
        self._stopping = True
        self._wakeup.set()

    async def finish(self) -> None:
        """Wait until no attempt is under way, and what left the queue is recorded."""
        while self._under_way or self._is_recording:
            await self._finished.wait()

    # attempts

    async def run(self) -> None:
        """Send until cancelled."""
        async with anyio.create_task_group() as workers:
            while True:
                self._refusals.tick(self._heartbeats.beat(self.loop))
                await self._wakeup.wait(self._longest_wait())
                if not self._stopping:
                    await self._end_expired()
                    await self._clear_queue()
                    self._connect_first(workers)
                    self._follow_shared(workers)
                while not self._stopping and (batch := self._next_batch()):
                    # On a slow disk a backlog always has a next batch: the loop turns here too.
                    self._refusals.tick(self._heartbeats.beat(self.loop))
                    await self._begin(batch, workers)

    def _follow_shared(self, tasks: TaskGroup) -> None:
        """Reserve attempts of a rate that workers share; give back a turn to probe that isn't needed."""
        if isinstance(self._pace, SharedPace):
            self._pace.reserve(tasks, self._wakeup, self._breaker.allowed(self.queued))
        if self._turns is not None:
            self._turns.follow(self._breaker, tasks)

    def _longest_wait(self) -> float:
        if self._stopping or not self._is_wanted or self._under_way >= self._policy.concurrency:
            return HEARTBEAT_INTERVAL
        paced = self._pace.wait() if self._pace is not None else 0.0
        return min(max(paced, self._breaker.wait()), HEARTBEAT_INTERVAL)

    @property
    def _is_wanted(self) -> bool:
        """Whether something may begin as soon as the pace and the breaker allow it."""
        if self._breaker.is_open and not self._provider.is_reached:
            return self._needs_probe
        return bool(self.queued)

    def _next_batch(self) -> list[Routed]:
        if self._breaker.is_open and not self._provider.is_reached:
            return []
        count = self._breaker.allowed(min(self.queued, self._policy.concurrency - self._under_way))
        if self._pace is not None and count:
            count = self._pace.allowed(count)
            self._pace.spend(count)
        if count and self._breaker.is_open:
            self._provider.probe()
        return self._queue.take(count)

    async def _end_expired(self) -> None:
        """End queued messages whose time ran out."""
        if expired := self._queue.take_expired():
            now = self._clock.now()
            await self._record([self._expire(routed, now) for routed in expired])

    def _expire(self, routed: Routed, now: int) -> Transition:
        """The end of a message whose time ran out before it had an intent."""
        self._refusals.unanswered(routed.entry.settings_id)
        return transitions.expired(routed.bound, State.READY, now, routed.expires_at or now)

    async def _clear_queue(self) -> None:
        """While the breaker is open, give messages to the other providers, and have most wait in the journal.

        A message that is to be the next probe stays.
        """
        if not self._breaker.is_open:
            self._given_up, self._comebacks = frozenset(), self._choice.comebacks
            return
        given_up = self._choice.given_up if self._is_given_up else frozenset[str]()
        is_reached, comebacks = self._provider.is_reached, self._choice.comebacks
        if (given_up and given_up != self._given_up) or (not is_reached and comebacks != self._comebacks):
            self._route_again(lambda routed: not routed.entry.doubt)
            self._comebacks = comebacks
        elif not is_reached:
            self._route_again(self._moves)
        self._given_up = given_up
        surplus = self._queue.take_surplus()
        for routed in surplus:
            self._refusals.unanswered(routed.entry.settings_id)
        await self._record([self.defer(routed) for routed in surplus])

    def _moves(self, routed: Routed) -> bool:
        """Whether a message doesn't wait here while no connection can be made: another provider takes it.

        While all are down, one takes a message as its probe; but none what may have arrived here.
        """
        entry = routed.entry
        if entry.may_have_arrived:
            return self._is_left_over(entry)
        return self._choice.can_move(entry, routed.customer, self.name)

    def _is_left_over(self, entry: Entry) -> bool:
        """Whether a message that may have arrived here may go elsewhere; offered here, it can go nowhere."""
        return entry.may_have_arrived and self._choice.leaves(entry, self.name)

    async def _record(self, steps: Sequence[Transition]) -> Collection[int]:
        """Record steps of messages that are in no queue any more; `finish` waits for that.

        Returns the ids of those that a receipt settled instead.
        """
        self._is_recording = True
        try:
            return await self._recorder.record(steps)
        finally:
            self._is_recording = False
            self._finished.set()

    def _route_again(self, which: Callable[[Routed], bool]) -> None:
        moving = self._queue.take_if(which)
        for routed in moving:
            self._refusals.unanswered(routed.entry.settings_id)
        self._recorder.route_again([routed.entry for routed in moving])

    # probes

    @property
    def _needs_probe(self) -> bool:
        """Whether a connection is to be made, so that a message may be the next probe.

        Where others take the messages, none comes before that; a lone provider's next one waits for it. While
        all providers of the channel are down, messages may wait for any of them.
        """
        if self.pause is not None or self._provider.is_reached:
            return False
        return bool(self.queued) or self.gives_away or (self.is_enabled and self._choice.is_down_with_others)

    def _connect_first(self, workers: TaskGroup) -> None:
        """Make a bare connection before a message is used as a probe."""
        if self._breaker.is_open and self._needs_probe and self._breaker.allowed(1):
            self._breaker.probe()
            workers.start_soon(self._connect, self._provider, self._parts.channel)

    async def _connect(self, provider: Provider, channel: Channel) -> None:
        policy = self._policy.breaker
        if self._turns is not None and not await self._turns.take(provider.breaker, policy):
            self._wakeup.set()
            return
        try:
            problem = await channel.probe()
        except OutOfFiles as error:
            provider.lacks_files(str(error))
            provider.breaker.put_off()
            self._wakeup.set()
            return
        except Exception as error:  # one broken adapter must not take the worker with it
            problem = f"the adapter failed with {type(error).__name__}"
        if provider.breaker.is_open:
            if problem is None:
                provider.reached()
                await self._recorder.wake([waits.alone(self.name)], most=KEPT)
            else:
                provider.not_reached(problem)
        self._wakeup.set()

    async def _begin(self, batch: Sequence[Routed], workers: TaskGroup) -> None:
        """Commit the intents of those that may still be sent, the ends of the others, and start sending."""
        parts = self._parts
        self._under_way += len(batch)
        parts.use.begin(len(batch))
        now = self._clock.now()
        begun: list[tuple[Entry, Routed, AttemptParts]] = []
        steps: list[Transition] = []
        characters = 0
        may_wait = self._pauses.any or self._channel_name in self._stopped.digests
        for routed in batch:
            if characters > MOST_DIGESTED:
                characters = 0
                await anyio.lowlevel.checkpoint()
            entry, _, customer, rendered, expires_at, size = routed
            characters += size
            if expires_at is not None and is_expired(expires_at, now):
                steps.append(self._expire(routed, now))
                continue
            may_have_arrived = entry.doubt or entry.content is not None  # the property costs more
            if (may_wait or may_have_arrived) and (step := self._put_off(routed, now)) is not None:
                self._refusals.unanswered(entry.settings_id)
                steps.append(step)
                continue
            digest = entry.digest if may_have_arrived else digest_of(rendered, parts.values(customer))
            entry = entry.begun(self.name, digest, now)
            begun.append((entry, routed, parts))
            steps.append(transitions.intent(entry, now, self._intermediate))
        settled = await self._record(steps)
        if settled:  # a receipt says that it was sent already
            for entry, *_ in begun:
                if entry.id in settled:
                    parts.refusals.unanswered(entry.settings_id)
            begun = [each for each in begun if each[0].id not in settled]
        if not begun:
            parts.breaker.withdraw()
        self._under_way -= len(batch) - len(begun)
        parts.use.end(len(batch) - len(begun))
        await self._start(begun, workers)

    async def _start(self, begun: Sequence[tuple[Entry, Routed, AttemptParts]], workers: TaskGroup) -> None:
        """Start attempts whose intents are recorded, not too many in one turn of the event loop."""
        first = characters = 0
        for count, (_, routed, _) in enumerate(begun):
            if characters > MOST_BEGUN:
                self._start_attempts(begun[first:count], workers)
                first, characters = count, 0
                await anyio.lowlevel.checkpoint()
            characters += ATTEMPT + routed.size
        self._start_attempts(begun[first:], workers)

    def _start_attempts(
        self, begun: Sequence[tuple[Entry, Routed, AttemptParts]], workers: TaskGroup
    ) -> None:
        self._begun.extend(begun)
        more = len(self._begun) - self._idle.unpark(len(self._begun))
        for _ in range(min(more, self._policy.concurrency - self._workers)):
            self._workers += 1
            workers.start_soon(self._work)

    def _put_off(self, routed: Routed, now: int) -> Transition | None:
        """The step of a queued message that isn't sent now, or not as it is.

        It was paused, its recipient stopped the channel, or it can't be repeated as it was.
        """
        entry = routed.entry
        if (pause := self._pauses.holding(entry, self.name)) is not None:
            return transitions.parked(entry, now, routed.expires_at, pause.waits_for)
        if self._has_stopped(routed):
            return transitions.deferred(entry, now, now, None)
        return self._parts.hold(routed) if entry.may_have_arrived else None

    def _has_stopped(self, routed: Routed) -> bool:
        """Whether the recipient stopped the channel.

        What may have arrived is repeated nevertheless: only an answer to it can settle it.
        """
        if self._channel_name not in self._stopped.digests:
            return False
        if routed.customer is None or routed.entry.may_have_arrived:
            return False
        return self._stopped.includes(self._channel_name, self._parts.channel.recipient(routed.customer))

    async def _work(self) -> None:
        while True:
            while not self._begun:
                await self._idle.park()
            entry, routed, parts = self._begun.popleft()
            self._outcomes.add(await self._attempts.make(entry, routed, parts))
            self._under_way -= 1
            parts.use.end(1)
            if self._queue.new or self._queue.repeats or self._breaker.is_open:
                self._wakeup.set()
            if self._stopping:
                self._finished.set()


def _all(_routed: Routed) -> bool:
    return True
