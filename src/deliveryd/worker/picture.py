"""Draws the overview of a running worker from its parts. Nothing here blocks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deliveryd import __version__
from deliveryd.config import Config
from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.provider import Provider
from deliveryd.journal.base import Counts, Open
from deliveryd.journal.pauses import Pause, PauseKind
from deliveryd.model import SECOND, Clock, channel_of, format_instant
from deliveryd.options.units import format_rate
from deliveryd.telemetry.log_writing import last_warnings
from deliveryd.telemetry.overview import (
    BreakerState,
    Disk,
    EventsView,
    Failure,
    Oldest,
    Overview,
    Paused,
    ProviderView,
    Receiving,
    Reload,
)
from deliveryd.worker.history import History
from deliveryd.worker.reload import LastReload
from deliveryd.worker.wiring import Parts

_NOW, _MINUTE = 10.0, 60.0
"""Seconds over which present rates, and those of the last minute, are measured."""

MOST_PAUSED = 100
"""Pauses that are listed: tens of thousands of messages may be paused one by one."""

_KINDS = list(PauseKind)


class Vitals(NamedTuple):
    """Whether the loops turn, and since when each; whether messages are taken, and why; seconds it runs.

    Also the last reload of the configuration.
    """

    alive: bool
    ages: Sequence[tuple[str, float]]
    ready: bool
    reason: str
    uptime: float
    last_reload: LastReload | None


class Figures(NamedTuple):
    """The latest figures of the journal."""

    counts: Counts
    open: Open


class Picture:
    """What a worker shows of itself."""

    def __init__(self, config: Config, parts: Parts, clock: Clock, history: History) -> None:
        self._config = config
        self._parts = parts
        self._clock = clock
        self._history = history

    def adopt(self, config: Config) -> None:
        """Follow another configuration from now on."""
        self._config = config

    def draw(self, vitals: Vitals, figures: Figures) -> Overview:
        """Draw it as it is now; what the journal has is some seconds old."""
        counts, history = figures.counts, self._history
        in_flight, dispatchers = self._parts.memory.in_flight, self._dispatchers()
        pauses, now = self._parts.memory.pauses.all, self._clock.now()
        rates = history.attempt_rates(_NOW)
        return Overview(
            at=format_instant(now),
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=round(vitals.uptime, 3),
            alive=vitals.alive,
            ready=vitals.ready,
            reason=vitals.reason,
            rates_10s=history.rates(_NOW),
            rates_60s=history.rates(_MINUTE),
            delay=history.delay(_MINUTE),
            in_flight=in_flight.held,
            in_flight_limit=in_flight.most,
            places_free=in_flight.free,
            messages={state.name.lower(): number for state, number in counts.states.items()},
            waiting_unbound=figures.open.waiting.get("", 0),
            events=EventsView(
                counts.events_waiting, counts.events_refused, self._parts.stations.reporting.failing
            ),
            oldest=oldest_of(figures.open, now),
            malformed=counts.malformed,
            receipts_unmatched=counts.receipts_unmatched,
            providers=[
                self._provider(name, dispatcher, figures.open, rates.get(name, 0.0), now)
                for name, dispatcher in dispatchers.items()
            ],
            disk=self._disk(),
            paused=[_paused(pause, counts.paused.get(pause.waits_for, 0)) for pause in _widest(pauses)],
            paused_left_out=max(len(pauses) - MOST_PAUSED, 0),
            warnings=last_warnings(),
            last_reload=_reload(vitals.last_reload),
            lanes={
                name: {
                    "queued": len(dispatcher.terms.provider.queue),
                    "under_way": dispatcher.admission.under_way,
                    "open": dispatcher.terms.provider.is_down,
                    "refused_settings": sorted(dispatcher.terms.provider.refusals.waiting),
                }
                for name, dispatcher in dispatchers.items()
            },
            loops={name: round(age, 3) for name, age in vitals.ages},
        )

    def _disk(self) -> Disk | None:
        journal = self._parts.journal
        return None if journal.is_shared else Disk(journal.room(), self._config.journal.reserve)

    def _dispatchers(self) -> Mapping[str, Dispatcher]:
        """The dispatchers in the order of the configuration, which a reload may have changed."""
        places = {name: place for place, name in enumerate(self._config.channels.providers)}
        known = self._parts.stations.dispatchers
        return {name: known[name] for name in sorted(known, key=lambda name: places.get(name, len(places)))}

    def _provider(
        self, name: str, dispatcher: Dispatcher, open_: Open, rate: float, now: int
    ) -> ProviderView:
        policy, provider = dispatcher.terms.policy, dispatcher.terms.provider
        totals = self._parts.metrics.provider_totals(name)
        failure = provider.last_failure
        since = now - int(provider.breaker.seconds_open * SECOND) if provider.is_down else None
        return ProviderView(
            identity=name,
            channel=channel_of(name),
            enabled=dispatcher.terms.is_enabled,
            waiting=open_.waiting.get(name, 0),
            queued=len(provider.queue),
            under_way=dispatcher.admission.under_way,
            concurrency=policy.concurrency,
            rate=rate,
            rate_limit=None if policy.rate is None else format_rate(policy.rate),
            breaker=_breaker(provider),
            since=None if since is None else format_instant(since),
            refused_settings=sorted(provider.refusals.waiting),
            last_failure=None
            if failure is None
            else Failure(failure.code, failure.reason, format_instant(failure.at)),
            in_doubt=open_.in_doubt.get(name, 0),
            receipts=self._receipts(name),
            accepted=totals.accepted,
            failed=totals.failed,
            delivered=totals.delivered,
            unconfirmed=totals.unconfirmed,
            overdue=totals.overdue,
        )

    def _receipts(self, name: str) -> Receiving:
        if name not in self._config.channels.reporting:
            return "none"
        return "silent" if name in self._parts.stations.deadlines.silent else "reporting"


def oldest_of(open_: Open, now: int) -> Oldest:
    """The ages of what waits longest."""
    message, event = (
        None if at is None else round(max(now - at, 0) / SECOND, 3)
        for at in (open_.oldest_message, open_.oldest_event)
    )
    return Oldest(message, event)


def _widest(pauses: Sequence[Pause]) -> Sequence[Pause]:
    """At most `MOST_PAUSED`: those of single messages are left out first."""
    if len(pauses) <= MOST_PAUSED:
        return pauses
    return sorted(pauses, key=lambda pause: _KINDS.index(pause.kind))[:MOST_PAUSED]


def _paused(pause: Pause, messages: int) -> Paused:
    until = None if pause.until is None else format_instant(pause.until)
    since = format_instant(pause.since)
    return Paused(pause.kind, pause.key, since, until, messages, pause.user, pause.caller, pause.reason)


def _reload(last: LastReload | None) -> Reload | None:
    if last is None:
        return None
    return Reload(format_instant(last.at), last.outcome, last.changes, last.problems)


def _breaker(provider: Provider) -> BreakerState:
    if not provider.is_down:
        return "closed"
    return "probing" if provider.breaker.is_probing else "open"
