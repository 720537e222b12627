"""Dispatchers: one for each provider, with a queue, concurrency, rate and retries of its own.

A dispatcher commits the intent to send, then sends, then has the step recorded that follows from the verdict.
What is queued has no intent yet: only attempts that are under way can be in doubt after a crash. While the
provider keeps failing, a dispatcher makes no attempts but probes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from deliveryd import transitions
from deliveryd.channels.base import Channel
from deliveryd.delivery.admission import Admission
from deliveryd.delivery.attempts import Attempts
from deliveryd.delivery.common import Common
from deliveryd.delivery.dispatch_queue import KEPT
from deliveryd.delivery.limits import given_back
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.pace import Pace, ProbeTurns, SharedPace
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.terms import DispatchTerms
from deliveryd.errors import OutOfFiles
from deliveryd.model import Entry, Transition, channel_of
from deliveryd.options.units import Rate
from deliveryd.runtime import waits
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent, Heartbeats, ParkingLot, Uses
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
        memory = common.memory
        self._common = common
        self.name = name = terms.provider.name
        self._shared = shared = common.journal.limits
        self._turns = ProbeTurns(name, shared) if shared is not None else None
        self.loop = f"dispatcher {name}"
        self._clock = common.clock
        self._heartbeats = common.heartbeats
        self._ready = memory.ready
        self._recorder = common.recorder
        self._waiting = common.waiting
        self._outcomes = common.outcomes
        self._metrics = common.metrics
        self._guard = common.guard
        self._channel_name = channel_of(name)
        self._pace: Pace | SharedPace | None = None
        self._equip(terms, Uses(), under_way=0)
        self._begun: deque[tuple[Delivery, Attempts]] = deque()
        self._idle = ParkingLot()
        self._workers = 0
        self._is_recording = False
        self._wakeup = AutoResetEvent()
        self._stopping = False
        self._changes = terms.choice.changes  # when the queue was routed again last
        self._finished = AutoResetEvent()

    def _equip(self, terms: DispatchTerms, use: Uses, under_way: int) -> None:
        provider, policy = terms.provider, terms.policy
        self.terms = terms
        self.admission = Admission(terms, self._common, under_way)
        self._choice = terms.choice
        self._policy = policy
        self._pace = self._paced_by(policy.rate)
        self._counts_parts = policy.rate is not None and policy.rate.in_parts
        self._queue = provider.queue
        self._queue.follow(terms.priorities)
        self._provider = provider
        self._breaker = provider.breaker
        self._refusals = provider.refusals
        may_begin = partial(self._shared.lease_covers, policy.timeout) if self._shared is not None else None
        self._attempts = Attempts(terms, self._common, use, may_begin)

    def _paced_by(self, rate: Rate | None) -> Pace | SharedPace | None:
        if rate is None:
            return None
        return Pace(rate) if self._shared is None else SharedPace(self.name, rate, self._shared)

    def adopt(self, terms: DispatchTerms) -> anyio.Event | None:
        """Work by new terms from now on, with whatever is queued; attempts under way end as they began.

        With another adapter, the event is set when the last attempt of the one before has ended.
        """
        attempts, queue, pace, rate = self._attempts, self._queue, self._pace, self._policy.rate
        is_same = terms.channel is attempts.channel
        self._equip(terms, attempts.use if is_same else Uses(), self.admission.under_way)
        if rate == terms.policy.rate:
            self._pace = pace
        if queue is not self._queue:
            self._ready.add([message.entry for message in queue.take_if(_all)])
        self._wakeup.set()
        return None if is_same else attempts.use.retire()

    def route_all_again(self) -> None:
        """Requeue all queued messages, since routing or rendering have changed."""
        self._route_again(_all)

    # queue

    def offer(self, message: Delivery) -> Transition | None:
        """Queue a message; or return the step of the one that waits in the journal instead."""
        if self._changes != self._choice.changes and self._breaker.is_open:
            self._follow_choice()  # first: the one that waits instead may be one that could go elsewhere now
        step = self.admission.admit(message)
        if step is None or step.entry is not message.entry:
            self._wakeup.set()
        return step

    def route_paused(self) -> None:
        """Have queued messages routed again that are paused: they wait in the journal, or go elsewhere."""
        self._route_again(self.admission.is_paused)

    # stop taking, stop working

    def leave(self) -> Sequence[Entry]:
        """Begin no more attempts, since the provider is removed; return what was queued."""
        self.stop()
        return [message.entry for message in self._queue.take_if(_all)]

    def stop(self) -> None:
        """Begin no more attempts."""
        self._stopping = True
        self._wakeup.set()

    async def finish(self) -> None:
        """Wait until no attempt is under way, and what left the queue is recorded."""
        while self.admission.under_way or self._is_recording:
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
            self._pace.reserve(tasks, self._wakeup, self._breaker.allowed(len(self._queue)))
        if self._turns is not None:
            self._turns.follow(self._breaker, tasks)

    def _longest_wait(self) -> float:
        if self._stopping or not self._is_wanted or self.admission.under_way >= self._policy.concurrency:
            return HEARTBEAT_INTERVAL
        paced = self._pace.wait() if self._pace is not None else 0.0
        return min(max(paced, self._breaker.wait()), HEARTBEAT_INTERVAL)

    @property
    def _is_wanted(self) -> bool:
        """Whether something may begin as soon as the pace and the breaker allow it."""
        if self._breaker.is_open and not self._provider.is_reached:
            return self.admission.needs_probe
        return bool(self._queue)

    def _next_batch(self) -> Sequence[Delivery]:
        if self._breaker.is_open and not self._provider.is_reached:
            return []
        count = self._breaker.allowed(
            min(len(self._queue), self._policy.concurrency - self.admission.under_way)
        )
        if self._pace is not None and count:
            if self._counts_parts:
                return self._by_parts(self._pace, count)
            count = self._pace.allowed(count)
            self._pace.spend(count)
        return self._taken(count)

    def _by_parts(self, pace: Pace | SharedPace, most: int) -> Sequence[Delivery]:
        """Take messages while the rate has a permit left; one with more parts uses up later permits."""
        batch: list[Delivery] = []
        while len(batch) < most and pace.allowed(1):
            batch += (taken := self._taken(1))
            pace.spend(parts := sum(message.parts for message in taken))
            self._metrics.parts.add_at(self.name, count=parts)
        return batch

    def _taken(self, count: int) -> Sequence[Delivery]:
        if count and self._breaker.is_open:
            self._provider.probe()
            if not self._refusals.refuses_all:  # otherwise the settings ids take turns
                return self._queue.take_probe()
        return self._queue.take(count)

    async def _end_expired(self) -> None:
        """End queued messages whose time ran out."""
        if expired := self._queue.take_expired():
            now = self._clock.now()
            for message in expired:
                self._refusals.unanswered(message.entry.settings_id)
            await self._record(
                [
                    transitions.expired(message.bound, State.READY, now, message.expires_at or now)
                    for message in expired
                ]
            )

    async def _clear_queue(self) -> None:
        """While the breaker is open, give messages to the other providers, and have most wait in the journal.

        A message that is to be the next probe stays.
        """
        if not self._breaker.is_open:
            # One that is still given up gives its queue away again as soon as it is down again.
            self._changes = -1 if self.name in self._choice.given_up else self._choice.changes
            return
        if self._changes != self._choice.changes and not self._provider.is_reached:
            self._follow_choice()
        elif not self._provider.is_reached:
            self._route_again(self.admission.moves)
        surplus = self._queue.take_surplus(self.admission.kept)
        for message in surplus:
            self._refusals.unanswered(message.entry.settings_id)
        await self._record([self.admission.defer(message) for message in surplus])

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

    def _follow_choice(self) -> None:
        """Route what is queued again, but for doubts: another provider or channel may take it now."""
        self._changes = self._choice.changes
        self._route_again(lambda message: not message.entry.doubt)

    def _route_again(self, which: Callable[[Delivery], bool]) -> None:
        moving = self._queue.take_if(which)
        for message in moving:
            self._refusals.unanswered(message.entry.settings_id)
        self._ready.add([message.entry for message in moving])

    # probes

    def _connect_first(self, workers: TaskGroup) -> None:
        """Make a bare connection before a message is used as a probe."""
        if self._breaker.is_open and self.admission.needs_probe and self._breaker.allowed(1):
            self._breaker.probe()
            workers.start_soon(self._connect, self._provider, self._attempts.channel)

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
                await self._waiting.wake([waits.alone(self.name)], most=KEPT)
            else:
                provider.not_reached(problem)
        self._wakeup.set()

    async def _begin(self, batch: Sequence[Delivery], workers: TaskGroup) -> None:
        """Commit the intents of those that may still be sent, the ends of the others, and start sending."""
        attempts, provider = self._attempts, self._provider
        self.admission.begin(len(batch))
        attempts.use.begin(len(batch))
        if self._channel_name in self._guard.limits:
            await self._guard.admit(self._channel_name, batch)
        now = self._clock.now()
        begun: list[Delivery] = []
        steps: list[Transition] = []
        characters = 0
        for message in batch:
            if characters > MOST_DIGESTED:
                characters = 0
                await anyio.lowlevel.checkpoint()
            characters += message.size
            held = await attempts.held(message, now) if message.entry.doubt else None
            steps.append(step := held or attempts.begin(message, now))
            if step.after is State.SENDING:
                begun.append(message)
            else:
                provider.refusals.unanswered(message.entry.settings_id)
        settled = await self._record(steps)
        if settled:  # a receipt proved that it was sent already
            for message in begun:
                if message.entry.id in settled:
                    provider.refusals.unanswered(message.entry.settings_id)
            begun = [message for message in begun if message.entry.id not in settled]
        if not begun:
            provider.breaker.withdraw()
        self.admission.end(len(batch) - len(begun))
        attempts.use.end(len(batch) - len(begun))
        await self._start(begun, attempts, workers)

    async def _start(self, begun: Sequence[Delivery], attempts: Attempts, workers: TaskGroup) -> None:
        """Start attempts whose intents are recorded, not too many in one turn of the event loop."""
        first = characters = 0
        for count, message in enumerate(begun):
            if characters > MOST_BEGUN:
                self._start_attempts(begun[first:count], attempts, workers)
                first, characters = count, 0
                await anyio.lowlevel.checkpoint()
            characters += ATTEMPT + message.size
        self._start_attempts(begun[first:], attempts, workers)

    def _start_attempts(self, begun: Sequence[Delivery], attempts: Attempts, workers: TaskGroup) -> None:
        self._begun.extend((message, attempts) for message in begun)
        more = len(self._begun) - self._idle.unpark(len(self._begun))
        for _ in range(min(more, self._policy.concurrency - self._workers)):
            self._workers += 1
            workers.start_soon(self._work)

    async def _work(self) -> None:
        while True:
            while not self._begun:
                await self._idle.park()
            message, attempts = self._begun.popleft()
            step = await attempts.make(message)
            self._outcomes.add(step if message.claim is None else given_back(step, message.claim))
            self.admission.end(1)
            attempts.use.end(1)
            if self._queue.count or self._breaker.is_open:
                self._wakeup.set()
            if self._stopping:
                self._finished.set()


def _all(_message: Delivery) -> bool:
    return True


class Dispatchers:
    """Runs a dispatcher for each provider. `current` has them by their providers, and is kept up to date."""

    def __init__(self, dispatchers: Mapping[str, Dispatcher], heartbeats: Heartbeats) -> None:
        self.current = dict(dispatchers)
        self._heartbeats = heartbeats
        self._scopes: dict[Dispatcher, anyio.CancelScope] = {}
        self._leaving: list[Dispatcher] = []
        self._tasks: TaskGroup | None = None

    @property
    def all(self) -> Sequence[Dispatcher]:
        """Those of removed providers too, whose last attempts are under way."""
        return (*self.current.values(), *self._leaving)

    async def run(self) -> None:
        """Run them until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            for dispatcher in self.current.values():
                self._start(dispatcher)
            await anyio.sleep_forever()

    def begin(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run another loop beside them."""
        if self._tasks is not None:
            self._tasks.start_soon(loop)

    def add(self, dispatcher: Dispatcher) -> None:
        """Run a dispatcher for a provider that was added."""
        self.current[dispatcher.name] = dispatcher
        self._start(dispatcher)

    def remove(self, provider: str) -> Dispatcher:
        """Begin no more attempts at a provider; return its dispatcher, to be ended by `end`."""
        dispatcher = self.current.pop(provider)
        self._leaving.append(dispatcher)
        return dispatcher

    async def end(self, dispatcher: Dispatcher) -> None:
        """Wait until a removed provider's last attempt has ended."""
        await dispatcher.finish()
        self._leaving.remove(dispatcher)
        if (scope := self._scopes.pop(dispatcher, None)) is not None:
            scope.cancel()
        if dispatcher.name not in self.current:
            self._heartbeats.forget(dispatcher.loop)

    def _start(self, dispatcher: Dispatcher) -> None:
        if self._tasks is not None:
            scope = self._scopes[dispatcher] = anyio.CancelScope()
            self._tasks.start_soon(_run_within, scope, dispatcher)


async def _run_within(scope: anyio.CancelScope, dispatcher: Dispatcher) -> None:
    with scope:
        await dispatcher.run()
