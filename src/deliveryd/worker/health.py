"""The worker's health, for the administrative pages, systemd and the metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import anyio

from deliveryd.config import Config
from deliveryd.delivery.tail import Tail, TailFeed, TailFilter
from deliveryd.journal.base import Counts, Open
from deliveryd.journal.pauses import PauseKind
from deliveryd.journal.place import JournalFile, JournalPlace
from deliveryd.metrics import Levels
from deliveryd.model import Clock
from deliveryd.states import State
from deliveryd.telemetry.output import dropped_lines
from deliveryd.telemetry.overview import Overview, Points
from deliveryd.worker.history import History
from deliveryd.worker.picture import Figures, Picture, Vitals, oldest_of
from deliveryd.worker.reload import Reloader
from deliveryd.worker.wiring import Parts

MISPLACED = "the journal was removed or replaced: don't restart (see the event journal.misplaced)"


class WorkerHealth:
    """The state of a running worker. No method blocks."""

    def __init__(self, config: Config, parts: Parts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self.history = History(parts.metrics)
        self._tails = TailFeed(parts.memory.watchers)
        self._picture = Picture(config, parts, clock, self.history)
        self._journal = config.journal.place
        self._patience = 45.0 + 4 * config.service.timeout
        self._started = anyio.current_time()
        self._waited_at = -math.inf  # when the journal was last seen to wait
        self._figures = Figures(Counts({}, 0, 0, 0, 0), Open())
        self.draining = False
        self.reloader: Reloader | None = None

    def adopt(self, config: Config) -> None:
        """Follow another configuration from now on."""
        self._picture.adopt(config)
        self._patience = 45.0 + 4 * config.service.timeout

    def refresh(self, counts: Counts, open_: Open | None) -> None:
        """Update the journal's figures; None: what is open couldn't be read, the former figures stay."""
        self._figures = Figures(counts, self._figures.open if open_ is None else open_)

    def alive(self) -> tuple[bool, Sequence[tuple[str, float]]]:
        """Return whether all loops are turning, and the seconds since the last turn of each."""
        ages, now = self._parts.heartbeats.ages(), anyio.current_time()
        if self._parts.journal.full:  # a restart wouldn't help
            self._waited_at = now
        # When it goes on, the loops turn one after the other.
        return all(min(age, now - self._waited_at) < self._patience for _, age in ages), ages

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
        counts = self._figures.counts
        waiting, in_doubt = (counts.states.get(state, 0) for state in (State.WAITING, State.IN_DOUBT))
        paused = sum(counts.paused.values())
        and_paused = f", {paused} paused" if paused else ""
        return (
            f"{reason[:1].upper()}{reason[1:]}: {self._parts.memory.in_flight.held} in flight,"
            f" {waiting - paused} waiting{and_paused}, {in_doubt} in doubt,"
            f" {counts.events_waiting} events to report"
        )

    def overview(self) -> Overview:
        """Return the state of the worker."""
        alive, ages = self.alive()
        ready, reason = self.ready()
        uptime = anyio.current_time() - self._started
        last_reload = None if self.reloader is None else self.reloader.last
        vitals = Vitals(alive, ages, ready, reason, uptime, last_reload)
        return self._picture.draw(vitals, self._figures)

    def hour(self) -> Points:
        """Return the last hour, by ten seconds."""
        return self.history.hour()

    def levels(self) -> Levels:
        """Return the values of the gauges."""
        dispatchers = self._parts.stations.dispatchers
        counts, open_ = self._figures
        oldest = oldest_of(open_, self._clock.now())
        pauses = Counter(str(pause.kind) for pause in self._parts.memory.pauses.all)
        return Levels(
            counts.states,
            counts.events_waiting,
            _size_of(self._journal),
            {
                name: each.terms.provider.is_down
                for name, each in dispatchers.items()
                if each.terms.is_enabled
            },
            self._parts.stations.deadlines.is_silent,
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
        )


def _size_of(journal: JournalPlace) -> int | None:
    """Bytes of the journal's files; None: it isn't in files of this machine."""
    if not isinstance(journal, JournalFile):
        return None
    files = (journal.path.with_name(journal.path.name + suffix) for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
