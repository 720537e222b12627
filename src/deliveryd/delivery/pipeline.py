"""The line: the whole life of a message, from the queue to the last reported event.

    GET /queue ─► journal ─► POST /events ─► settings ─► render ─► channel ─► journal ─► POST /events
      intake     (durable)    dequeued     (disk cache)              (dispatcher)    (durable)   sent | error

Only this module has the order. The stations are built before it and import neither it nor one another; what
they have in common is the recorder, which makes each step durable and then signals the next station.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import anyio
from anyio.abc import TaskGroup

from deliveryd.delivery.availability import Availability
from deliveryd.delivery.common import Common
from deliveryd.delivery.deadlines import ReceiptDeadlines
from deliveryd.delivery.dispatcher import Dispatcher, Dispatchers
from deliveryd.delivery.due import DueMessages
from deliveryd.delivery.intake import Intake
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.outcomes import Outcomes
from deliveryd.delivery.policy import DoubtPolicy
from deliveryd.delivery.preparation import Preparer
from deliveryd.delivery.recovery import look_at_paused, recover_line
from deliveryd.delivery.reporting import Reporting
from deliveryd.delivery.routing import Route
from deliveryd.delivery.sharing import Sharing
from deliveryd.model import Transition
from deliveryd.states import State

IDLE_CHECK = 0.05


class Stations(NamedTuple):
    """The stations of the line."""

    intake: Intake
    reporting: Reporting
    preparer: Preparer
    running: Dispatchers
    outcomes: Outcomes
    due: DueMessages
    doubts: dict[str, DoubtPolicy]
    availability: Availability
    deadlines: ReceiptDeadlines
    sharing: Sharing

    @property
    def dispatchers(self) -> Mapping[str, Dispatcher]:
        """The dispatchers by their providers, as they are configured now."""
        return self.running.current

    @property
    def disabled(self) -> Collection[str]:
        """The providers that only settle what is in doubt there."""
        return [name for name, each in self.dispatchers.items() if not each.terms.is_enabled]


class Pipeline:
    """The stations in their order, the start and the end of the line."""

    def __init__(self, stations: Stations, common: Common) -> None:
        self._stations = stations
        self._running = stations.running
        self._dispatchers = stations.dispatchers
        self._common = common
        self._journal = common.journal
        self._memory = common.memory
        self._recorder = common.recorder
        self._clock = common.clock
        self._heartbeats = common.heartbeats
        self._taken_last = anyio.Event()

    async def recover(self) -> None:
        """0. Take up what an earlier run left, before anything else."""
        await recover_line(self._common, self._stations.doubts, self._stations.availability)
        await look_at_paused(self._common, self._dispatchers)
        await self._common.waiting.leave((), self._stations.disabled)
        await self._stations.deadlines.recover()

    def loops(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """The line: what runs side by side."""
        return (
            self.take,  # 1. from the queue into the journal
            self._stations.reporting.run,  # 2. `dequeued` to the service; what it accepts is ready
            self.deliver,  # 3. settings, customer, expiry, language, channel, text; then to a dispatcher
            self._running.run,  # 4. for each provider: intent, attempt, verdict
            self._stations.outcomes.run,  # 5. the outcome into the journal, with its event for `reporting`
            self._stations.availability.run,  # channels that are down for too long
            self._stations.due.run,  # what waits comes back to 3 when its time has come
            *self._stations.deadlines.loops(),  # what was sent and isn't confirmed in time waits again
            *self._stations.sharing.loops(),  # what other workers did, and left
        )

    async def take(self) -> None:
        """Take until the end begins."""
        await self._stations.intake.run()
        self._heartbeats.forget("intake")
        self._taken_last.set()

    async def deliver(self) -> None:
        """Prepare ready messages and hand them to their dispatchers."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stations.preparer.run)
            while True:
                self._heartbeats.beat("delivery")
                await self._memory.ready.wait()
                self._hand_over(self._stations.preparer.prepare(self._memory.ready.take(), tasks), tasks)

    def _hand_over(self, routes: Sequence[Route], tasks: TaskGroup) -> None:
        """Put messages into their dispatchers' queues; record the steps that others take instead."""
        steps: list[Transition] = []
        for route in routes:
            step = self._dispatchers[route.provider].offer(route) if isinstance(route, Delivery) else route
            if step is not None:
                steps.append(step)
        if steps:
            tasks.start_soon(self._record, steps)

    async def _record(self, steps: Sequence[Transition]) -> None:
        await self._recorder.record(steps)
        if waits_for := {step.waits_for for step in steps if step.waits_for is not None}:
            self._stations.preparer.now_waiting(waits_for)

    async def until_idle(self) -> None:
        """Return when the queue was empty, messages ended or are held, and events are accepted.

        Nothing more is taken then. Messages are held that are in doubt or paused; while the intake is paused,
        the queue counts as empty.
        """
        while not (self._taken_last.is_set() and await self._is_idle()):
            is_empty = self._stations.intake.found_empty or self._memory.pauses.intake is not None
            if is_empty and await self._is_idle():
                self._stations.intake.stop()  # a take that is under way may bring something after all
                await self._taken_last.wait()
            else:
                await anyio.sleep(IDLE_CHECK)

    async def _is_idle(self) -> bool:
        if not self._memory.is_idle or self._journal.misplaced() is not None:
            return False
        counts = await self._journal.counts()
        pauses = self._memory.pauses
        held = sum(count for waits_for, count in counts.paused.items() if pauses.is_in_force(waits_for))
        if counts.states.get(State.WAITING, 0) > held:
            return False
        if counts.events_waiting or counts.states.keys() - {State.IN_DOUBT, State.WAITING}:
            return False
        return not self._journal.is_shared or await self._others_are_idle()

    async def _others_are_idle(self) -> bool:
        """Whether nothing is open of what other workers have, or had before they died."""
        found = await self._journal.open_work()
        return found.oldest_message is None and found.oldest_event is None

    async def drain(self) -> None:
        """Stop taking, finish what is under way, a take among it, begin nothing new, and report all of it."""
        self._stations.intake.stop()
        self._stations.deadlines.stop()
        self._stations.sharing.stop()
        dispatchers = self._running.all
        for dispatcher in dispatchers:
            dispatcher.stop()
        for dispatcher in dispatchers:
            await dispatcher.finish()
        await self._stations.sharing.finish()
        await self._stations.outcomes.flush()
        await self._common.guard.keep()
        self._memory.outbox.hurry()
        await self._taken_last.wait()  # what it brings isn't given again
        await self._stations.reporting.flushed()
        await self._common.guard.keep()

    async def end_take(self) -> None:
        """Wait for the batch that was asked for, if the end came before it; see `Intake.end`."""
        await self._stations.intake.end()
        await self._taken_last.wait()
