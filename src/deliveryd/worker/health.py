"""The worker's health and what it shows of itself, for the administrative pages, systemd and the metrics."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import anyio

from deliveryd import __version__
from deliveryd.config import Config
from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.limits import SendingLimits
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.tail import Tail, TailFeed, TailFilter
from deliveryd.journal.base import Counts, Open
from deliveryd.journal.pauses import Pause, PauseKind
from deliveryd.journal.place import JournalFile, JournalPlace
from deliveryd.metrics import Levels
from deliveryd.model import SECOND, Clock, channel_of, format_duration, format_instant
from deliveryd.options.quotas import format_quota
from deliveryd.options.units import format_rate
from deliveryd.runtime import waits
from deliveryd.states import State
from deliveryd.telemetry.log_writing import last_warnings
from deliveryd.telemetry.output import dropped_lines
from deliveryd.telemetry.overview import (
    BreakerState,
    Disk,
    EventsView,
    Failure,
    Limits,
    LimitView,
    Oldest,
    Overview,
    Paused,
    Points,
    ProviderView,
    Receiving,
    Reload,
)
from deliveryd.worker.history import History
from deliveryd.worker.reload import LastReload, Reloader
from deliveryd.worker.wiring import Parts

MISPLACED = "the journal was removed or replaced: don't restart (see the event journal.misplaced)"

_NOW, _MINUTE = 10.0, 60.0
"""Seconds over which present rates, and those of the last minute, are measured."""

MOST_PAUSED = 100
"""Pauses that are listed: tens of thousands of messages may be paused one by one."""

_KINDS = list(PauseKind)


class WorkerHealth:
    """The state of a running worker. No method blocks."""

    def __init__(self, config: Config, parts: Parts, clock: Clock) -> None:
        self.config = config
        """The configuration in force, which a reload replaces."""

        self._parts = parts
        self._clock = clock
        self.history = History(parts.metrics)
        self._tails = TailFeed(parts.memory.watchers)
        self._started = anyio.current_time()
        self._waited_at = -math.inf  # when the journal was last seen to wait
        self._counts = Counts({}, 0, 0, 0, 0)
        self._open = Open()
        self.draining = False
        self.reloader: Reloader | None = None

    def refresh(self, counts: Counts, open_: Open | None) -> None:
        """Update the journal's figures; None: what is open couldn't be read, the former figures stay."""
        self._counts = counts
        self._open = self._open if open_ is None else open_

    def alive(self) -> tuple[bool, Sequence[tuple[str, float]]]:
        """Return whether all loops are turning, and the seconds since the last turn of each."""
        ages, now = self._parts.heartbeats.ages(), anyio.current_time()
        patience = 45.0 + 4 * self.config.service.timeout
        if self._parts.journal.full:  # a restart wouldn't help
            self._waited_at = now
        # When it goes on, the loops turn one after the other.
        return all(min(age, now - self._waited_at) < patience for _, age in ages), ages

    def ready(self) -> tuple[bool, str]:
        """Return whether messages are being taken, and the reason as a sentence."""
        recorder, stations = self._parts.recorder, self._parts.stations
        if not recorder.recovered:
            return False, "starting: resuming the work of an earlier run"
        if self._parts.journal.misplaced() is not None:
            return False, MISPLACED
        if self.draining:
            return False, "finishing work in progress; no more messages are taken"
        if (obstacle := recorder.obstacle()) is not None:
            return False, obstacle
        if stations.intake.down:
            return False, "the queue gives no usable answer; it is polled again"
        if stations.reporting.down:
            return False, "the service accepts no events; they wait in the journal"
        if any(dispatcher.terms.provider.is_down for dispatcher in stations.dispatchers.values()):
            return True, "taking messages, but a provider keeps failing"
        if self._parts.memory.pauses.any:
            return True, "taking messages, but something is paused (deliveryd paused)"
        if any(dispatcher.terms.provider.refusals.waiting for dispatcher in stations.dispatchers.values()):
            return True, "taking messages, but a provider refuses all messages of some settings"
        return True, "taking messages"

    def receiving(self) -> tuple[bool, str]:
        """Return whether providers may report here, and the reason as a sentence.

        An outage of the queue or of the service is no reason against it.
        """
        parts = self._parts
        if parts.receipts is None:
            return False, "no receipts are taken: no receipt table, or receipts.listen is empty"
        if self.draining:
            return False, "finishing work in progress; the worker ends soon"
        if not parts.recorder.recovered:
            return False, "starting: resuming the work of an earlier run"
        if parts.journal.misplaced() is not None:
            return False, MISPLACED
        if not parts.recorder.takes_receipts:
            return False, parts.recorder.lack
        return True, "receipts are taken"

    def tail(self, wanted: TailFilter) -> Tail:
        """Return a reader of what happens to messages, which begins with its `with` block."""
        return self._tails.open(wanted)

    def sentence(self) -> str:
        """Return the worker's state as a sentence."""
        _, reason = self.ready()
        counts = self._counts
        waiting, in_doubt = (counts.states.get(state, 0) for state in (State.WAITING, State.IN_DOUBT))
        paused = sum(counts.paused.values())
        and_paused = f", {paused} paused" if paused else ""
        return (
            f"{reason[:1].upper()}{reason[1:]}: {self._parts.memory.in_flight.held} in flight,"
            f" {waiting - paused} waiting{and_paused}, {in_doubt} in doubt,"
            f" {self._events_waiting} events to report"
        )

    def overview(self) -> Overview:
        """Return the state of the worker; what the journal has is some seconds old."""
        alive, ages = self.alive()
        ready, reason = self.ready()
        counts, open_, history = self._counts, self._open, self.history
        in_flight, dispatchers = self._parts.memory.in_flight, self._dispatchers()
        pauses, now = self._parts.memory.pauses.all, self._clock.now()
        rates = history.attempt_rates(_NOW)
        return Overview(
            at=format_instant(now),
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=round(anyio.current_time() - self._started, 3),
            alive=alive,
            ready=ready,
            reason=reason,
            rates_10s=history.rates(_NOW),
            rates_60s=history.rates(_MINUTE),
            delay=history.delay(_MINUTE),
            in_flight=in_flight.held,
            in_flight_limit=in_flight.most,
            places_free=in_flight.free,
            messages={state.name.lower(): number for state, number in counts.states.items()},
            waiting_for=open_.causes,
            events=EventsView(
                self._events_waiting, counts.events_refused, self._parts.stations.reporting.failing
            ),
            oldest=_oldest(open_, now),
            malformed=counts.malformed,
            receipts_unmatched=counts.receipts_unmatched,
            providers=[
                self._provider(name, dispatcher, open_, rates.get(name, 0.0), now)
                for name, dispatcher in dispatchers.items()
            ],
            disk=self._disk(),
            paused=[_paused(pause, counts.paused.get(pause.waits_for, 0)) for pause in _widest(pauses)],
            paused_left_out=max(len(pauses) - MOST_PAUSED, 0),
            warnings=last_warnings(),
            last_reload=_reload(None if self.reloader is None else self.reloader.last),
            lanes={
                name: {
                    "queued": len(dispatcher.terms.provider.queue),
                    "under_way": dispatcher.admission.under_way,
                    "open": dispatcher.terms.provider.is_down,
                    "refused_settings": sorted(dispatcher.terms.provider.refusals.waiting),
                }
                for name, dispatcher in dispatchers.items()
            },
            loops={name: round(age, 3) for name, age in ages},
            safety=Limits(*self.config.safety.figures) if self.config.safety.limits else None,
            limits=[*_limits(self._parts.memory.limits, open_, now)],
        )

    def hour(self) -> Points:
        """Return the last hour, by ten seconds."""
        return self.history.hour()

    def levels(self) -> Levels:
        """Return the values of the gauges."""
        dispatchers = self._parts.stations.dispatchers
        counts, open_ = self._counts, self._open
        oldest = _oldest(open_, self._clock.now())
        pauses = Counter(str(pause.kind) for pause in self._parts.memory.pauses.all)
        return Levels(
            counts.states,
            self._events_waiting,
            _size_of(self.config.journal.place),
            {
                name: each.terms.provider.is_down
                for name, each in dispatchers.items()
                if each.terms.is_enabled
            },
            self._parts.stations.deadlines.is_silent,
            self._parts.memory.shares.all,
            {str(kind): pauses[kind] for kind in PauseKind},
            sum(counts.paused.values()),
            ready=self.ready()[0],
            in_doubt={name: open_.in_doubt.get(name, 0) for name in dispatchers},
            oldest_message=oldest.message or 0.0,
            oldest_event=oldest.event or 0.0,
            in_flight=self._parts.memory.in_flight.held,
            in_flight_limit=self._parts.memory.in_flight.most,
            log_dropped=dropped_lines(),
            events_failing=self._parts.stations.reporting.failing,
            budgets_used={
                level.budget.name: level.ratio
                for level in self._parts.memory.limits.levels(self._clock.now())
            },
            limited={name: open_.limited.get(name, 0) for name in self._parts.memory.limits.names},
            only_to=self.config.safety.figures[0],
            share=self.config.safety.figures[1],
        )

    @property
    def _events_waiting(self) -> int:
        """Events to report: those that the journal had some seconds ago, and at least those in memory now."""
        return max(self._counts.events_waiting, self._parts.stations.reporting.unanswered)

    def _disk(self) -> Disk | None:
        journal = self._parts.journal
        return None if journal.is_shared else Disk(journal.room(), self.config.journal.reserve)

    def _dispatchers(self) -> Mapping[str, Dispatcher]:
        """The dispatchers in the order of the configuration, which a reload may have changed."""
        places = {name: place for place, name in enumerate(self.config.channels.providers)}
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
            share=self._parts.memory.shares.of(name),
        )

    def _receipts(self, name: str) -> Receiving:
        if name not in self.config.channels.reporting:
            return "none"
        return "silent" if name in self._parts.stations.deadlines.silent else "reporting"


def _oldest(open_: Open, now: int) -> Oldest:
    """The ages of what waits longest."""
    message, event = (
        None if at is None else round(max(now - at, 0) / SECOND, 3)
        for at in (open_.oldest_message, open_.oldest_event)
    )
    return Oldest(message, event)


def _limits(limits: SendingLimits, open_: Open, now: int) -> Iterator[LimitView]:
    for level in limits.levels(now):
        name, quota = level.budget.name, level.budget.quota
        waiting = open_.limited.get(waits.budget(name), 0)
        yield LimitView(
            "budget", name, format_quota(quota), waiting, level.used, quota.most, format_instant(level.until)
        )
    for cap in limits.caps.all:
        per = format_duration(cap.share.per / SECOND)
        waiting = open_.limited.get(waits.cap(cap.name), 0)
        most = "1 message" if cap.share.most == 1 else f"{cap.share.most} messages"
        yield LimitView("cap", cap.name, f"{most} per customer within {per}", waiting)


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


def _size_of(journal: JournalPlace) -> int | None:
    """Bytes of the journal's files; None: it isn't in files of this machine."""
    if not isinstance(journal, JournalFile):
        return None
    files = (journal.path.with_name(journal.path.name + suffix) for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
