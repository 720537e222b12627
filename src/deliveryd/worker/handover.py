"""The exchange of a running line's parts for those of another configuration, and what follows from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import anyio
from anyio.abc import TaskGroup

from deliveryd.channels.destination_rules import rules_of
from deliveryd.config import Config
from deliveryd.delivery.dispatch_queue import KEPT
from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.recovery import look_at_paused
from deliveryd.errors import IllegalTransition
from deliveryd.runtime import waits
from deliveryd.telemetry.log_events import Event, log
from deliveryd.worker.outside import Closable, Outside
from deliveryd.worker.wiring import (
    Derived,
    Parts,
    compiler,
    derive,
    longest_pause,
    policy_of,
)

if TYPE_CHECKING:
    from deliveryd.receipts.app import Receipts
    from deliveryd.receipts.inlet import Inlets


_RECORDED_AGAIN = 3
"""How often messages held in doubt are read again that an operator decided about meanwhile."""


class _Difference(NamedTuple):
    """The providers that were added or removed, or have another adapter; `routes`: routing differs.

    `rules`: what decides of routing and windows differs, whatever adapters there are.
    """

    added: Collection[str]
    removed: Collection[str]
    changed: Collection[str]
    routes: bool
    rules: bool


class Handover:
    """Hands a running line over to one configuration after the other."""

    def __init__(self, config: Config, parts: Parts, tasks: TaskGroup) -> None:
        self._parts = parts
        self._common = parts.common
        self._stations = parts.stations
        self._recorder = parts.recorder
        self._memory = parts.memory
        self._tasks = tasks
        self._removed: set[str] = set()
        self._repeating: set[str] = set()
        self._watches_deadlines = bool(config.channels.reporting)
        self.outside = parts.outside
        """What is in use now."""
        self.receipts = parts.receipts
        """What takes receipts in; None: nothing has reported so far."""

    def take_over(
        self,
        before: Config,
        config: Config,
        outside: Outside,
        receipts: Receipts | None,
        inlets: Inlets | None,
    ) -> None:
        """Replace all parts. Without an await: the loops see either the old configuration or the new one."""
        difference = _difference(before, config, self.outside, outside)
        states = self._states(config, difference)
        waited_for = list(self._memory.limits.names)
        derived = derive(config, outside.providers, states, self._stations.doubts, self._common)
        self._replace_limits(before, config, self.outside.service is not outside.service)
        self._replace_outside(outside)
        self._stations.preparer.adopt(derived.router)
        self._parts.settings.adopt(
            None if before.content == config.content else compiler(config),
            config.settings.ttl,
            config.settings.stale_while_down,
        )
        self._replace_dispatchers(derived, difference)
        self._stations.availability.adopt(derived.choices, derived.limits)
        self._replace_receipts(config, receipts, inlets)
        self.outside = outside
        self._removed = (self._removed | set(difference.removed)) - derived.terms.keys()
        self._tasks.start_soon(self._wake, difference, states, _to_repeat(before, config))
        for name in waited_for if difference.routes else ():
            self._memory.backlog.answered(name)

    async def sweep(self) -> None:
        """Do again what follows from a reload: some steps are recorded after it that were made before."""
        await self._common.waiting.leave(self._removed, self._stations.disabled)
        if self._repeating:
            providers, self._repeating = self._repeating - self._removed, set()
            await self._repeat_held(providers)

    # the exchange

    def _states(self, config: Config, difference: _Difference) -> Mapping[str, Provider]:
        """What is known of each provider; of a new address or credentials, nothing but that it failed."""
        dispatchers = self._stations.dispatchers
        states = {}
        for name, provider in config.channels.providers.items():
            policy = policy_of(provider).breaker
            if name in dispatchers and name not in difference.changed:
                states[name] = dispatchers[name].terms.provider
                states[name].follow(policy)
                continue
            states[name] = Provider(
                name, policy, self._memory.backlog, self._memory.pauses, self._common.clock
            )
            if name in dispatchers and dispatchers[name].terms.provider.is_failing:
                states[name].probe_soon()
        return states

    def _replace_limits(self, before: Config, config: Config, is_other_service: bool) -> None:
        memory, stations = self._memory, self._stations
        memory.backlog.bound(config.queue.max_waiting, config.queue.max_paused)
        self._common.waiting.bound(longest_pause(config))
        memory.pausing.configure(config.channels.providers)
        memory.in_flight.change(config.queue.max_in_flight)
        self._parts.journal.reserve = config.journal.reserve
        stations.due.adopt(config.queue.max_waiting, config.priorities)
        stations.reporting.adopt(
            batch_size=config.events.batch_size, flush_interval=config.events.flush_interval
        )
        if is_other_service or before.queue != config.queue:
            stations.intake.adopt(
                batch_size=config.queue.batch_size,
                take_ahead=config.queue.take_ahead,
                poll_interval=config.queue.poll_interval,
                max_poll_interval=config.queue.max_poll_interval,
                answered_within=config.service.timeout,
            )

    def _replace_outside(self, outside: Outside) -> None:
        before, parts = self.outside, self._parts
        if outside.service is not before.service:
            self._close_after(parts.service.replace(outside.service), before.service)
            parts.settings.ask_again()
            if parts.stations.reporting.down:
                self._memory.outbox.go_on()
        if outside.directory is not before.directory:
            self._close_after(parts.directory.replace(outside.directory), before.directory)

    def _replace_dispatchers(self, derived: Derived, difference: _Difference) -> None:
        stations = self._stations
        leaving = [stations.running.remove(name) for name in difference.removed]
        for name, terms in derived.terms.items():
            self._common.metrics.add_provider(name)
            dispatcher = stations.dispatchers.get(name)
            if dispatcher is None:
                stations.running.add(Dispatcher(terms, self._common))
                continue
            adapter = dispatcher.terms.channel
            if (unused := dispatcher.adopt(terms)) is not None:
                self._close_after(unused, adapter)
            if difference.routes:
                dispatcher.route_all_again()
        for dispatcher in leaving:
            self._memory.ready.add(dispatcher.leave())
            self._tasks.start_soon(self._end, dispatcher)

    def _replace_receipts(self, config: Config, receipts: Receipts | None, inlets: Inlets | None) -> None:
        deadlines = self._stations.deadlines
        deadlines.adopt(tuple(config.channels.reporting))
        if config.channels.reporting and not self._watches_deadlines:
            self._watches_deadlines = True
            self._stations.running.begin(deadlines.run)
        self._parts.overdue.adopt(config.channels.overdue)
        self.receipts = receipts
        if receipts is not None and inlets is not None:
            receipts.adopt(inlets)

    # afterwards

    def _close_after(self, unused: anyio.Event, part: Closable) -> None:
        async def close() -> None:
            await unused.wait()
            await self.outside.holdings.close(part)

        self._tasks.start_soon(close)

    async def _end(self, dispatcher: Dispatcher) -> None:
        """Finish the attempts at a removed provider, then release what they left there."""
        await self._stations.running.end(dispatcher)
        await self._stations.outcomes.flush()
        await self.sweep()
        await self.outside.holdings.close(dispatcher.terms.channel)

    async def _wake(
        self, difference: _Difference, states: Mapping[str, Provider], to_repeat: Collection[str]
    ) -> None:
        """Let messages go on that wait for what has changed, as a start does."""
        waiting, backlog = self._common.waiting, self._memory.backlog
        if difference.routes:
            await look_at_paused(self._common, self._stations.dispatchers)
            for name in states:
                backlog.answered(waits.alone(name))
        await self.sweep()
        self._repeating |= {*to_repeat, *difference.added, *difference.changed}
        await self._repeat_held(self._repeating)
        for name in (*difference.added, *difference.changed):
            await waiting.wake([waits.recovery(name)], most=KEPT)
            if not states[name].is_down:
                backlog.answered(waits.recovery(name))
        if difference.rules:
            backlog.answered(waits.WINDOW)
        backlog.note_short_of_room(states)
        backlog.changed.set()

    async def _repeat_held(self, providers: Collection[str]) -> None:
        """Repeat what is held in doubt at providers that repeat it now."""
        doubts = self._stations.doubts
        for _ in range(_RECORDED_AGAIN):
            now = self._common.clock.now()
            dispatchers = self._stations.dispatchers
            held = await self._common.waiting.held([name for name in providers if name in dispatchers])
            steps = [
                step
                for entry, _, reason in held
                if (step := doubts[entry.provider or ""].after_hold(entry, reason or "", now)) is not None
            ]
            try:
                settled = await self._recorder.record(steps)
            except IllegalTransition:  # an operator or a receipt settled one of them meanwhile
                continue
            if len(steps) > len(settled):
                log(Event.MESSAGE_REPEATED, count=len(steps) - len(settled))
            return


def _difference(before: Config, config: Config, old: Outside, new: Outside) -> _Difference:
    stay = old.providers.keys() & new.providers.keys()
    changed = [name for name in stay if new.providers[name] is not old.providers[name]]
    rules_differ = _routing(before) != _routing(config)
    return _Difference(
        [name for name in new.providers if name not in stay],
        [name for name in old.providers if name not in stay],
        changed,
        bool(changed) or rules_differ,
        rules_differ,
    )


def _routing(config: Config) -> object:
    """What of a configuration decides where a message goes, and its content."""
    channels = {
        name: (
            channel.block,
            channel.common.max_parts,
            channel.common.transliterate,
            channel.common.allow_premium,
            [
                (
                    each.identity,
                    each.common.weight,
                    each.common.weights,
                    each.common.enabled,
                    rules_of(channel, each),
                )
                for each in channel.providers.values()
            ],
        )
        for name, channel in config.channels.configured.items()
    }
    limits = config.budgets.terms, config.caps.terms
    return config.content, config.channels.order, config.safety, channels, config.windows.terms, limits


def _to_repeat(before: Config, config: Config) -> Collection[str]:
    """The providers that held what is in doubt, and may repeat it now."""
    old = before.channels.providers
    return [
        name
        for name, provider in config.channels.providers.items()
        if name in old
        and provider.common.on_in_doubt == "resend"
        and (old[name].common.on_in_doubt != "resend" or before.safety != config.safety)
    ]
