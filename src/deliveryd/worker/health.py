"""The worker's health, for the administrative pages, systemd and the metrics."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import anyio

from deliveryd import __version__
from deliveryd.config import Config
from deliveryd.journal.base import Counts
from deliveryd.journal.pauses import Pause, PausedMessages, PauseKind, as_data
from deliveryd.metrics import Levels
from deliveryd.states import State
from deliveryd.worker.wiring import Parts


class WorkerHealth:
    """The state of a running worker. No method blocks."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self._parts = parts
        self._journal_path = config.journal.path
        self._patience = 45.0 + 4 * config.service.timeout
        self._started = anyio.current_time()
        self._counts = Counts({}, 0, 0, 0, 0)
        self.draining = False

    def refresh(self, counts: Counts) -> None:
        """Update the journal's counts."""
        self._counts = counts

    def alive(self) -> tuple[bool, Sequence[tuple[str, float]]]:
        """Return whether all loops are turning, and the seconds since the last turn of each."""
        ages = self._parts.heartbeats.ages()
        waits_for_room = self._parts.journal.full  # a restart wouldn't help
        return waits_for_room or all(age < self._patience for _, age in ages), ages

    def ready(self) -> tuple[bool, str]:
        """Return whether messages are being taken, and the reason as a sentence."""
        recorder, stations = self._parts.recorder, self._parts.stations
        if not recorder.recovered:
            return False, "starting: resuming the work of an earlier run"
        if self._parts.journal.misplaced() is not None:
            return (
                False,
                "the journal was removed or replaced: don't restart (see the event journal.misplaced)",
            )
        if self.draining:
            return False, "finishing work in progress; no more messages are taken"
        if (obstacle := recorder.obstacle()) is not None:
            return False, obstacle
        if stations.intake.down:
            return False, "the queue gives no usable answer; it is polled again"
        if stations.reporting.down:
            return False, "the service accepts no events; they wait in the journal"
        if any(dispatcher.is_open for dispatcher in stations.dispatchers.values()):
            return True, "taking messages, but a provider keeps failing"
        if recorder.pauses.any:
            return True, "taking messages, but something is paused (deliveryd paused)"
        if any(dispatcher.refused_settings for dispatcher in stations.dispatchers.values()):
            return True, "taking messages, but a provider refuses all messages of some settings"
        return True, "taking messages"

    def sentence(self) -> str:
        """Return the worker's state as a sentence."""
        _, reason = self.ready()
        states, paused = self._counts.states, sum(self._counts.paused.values())
        waiting = states.get(State.WAITING, 0) - paused
        and_paused = f", {paused} paused" if paused else ""
        return (
            f"{reason[:1].upper()}{reason[1:]}: {self._parts.recorder.in_flight.held} in flight,"
            f" {waiting} waiting{and_paused}, {states.get(State.IN_DOUBT, 0)} in doubt,"
            f" {self._counts.events_waiting} events to report"
        )

    def status(self) -> Mapping[str, object]:
        """Return the state as JSON."""
        alive, ages = self.alive()
        ready, reason = self.ready()
        counts = self._counts
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_seconds": round(anyio.current_time() - self._started, 3),
            "alive": alive,
            "ready": ready,
            "reason": reason,
            "in_flight": self._parts.recorder.in_flight.held,
            "places_free": self._parts.recorder.in_flight.free,
            "messages": {state.name.lower(): number for state, number in counts.states.items()},
            "events": {"waiting": counts.events_waiting, "refused": counts.events_refused},
            "paused": [self._as_data(pause) for pause in self._parts.recorder.pauses.all],
            "malformed": counts.malformed,
            "receipts_unmatched": counts.receipts_unmatched,
            "lanes": {
                name: {
                    "queued": dispatcher.queued,
                    "under_way": dispatcher.under_way,
                    "open": dispatcher.is_open,
                    "refused_settings": sorted(dispatcher.refused_settings),
                }
                for name, dispatcher in self._parts.stations.dispatchers.items()
            },
            "loops": {name: round(age, 3) for name, age in ages},
        }

    def _as_data(self, pause: Pause) -> Mapping[str, object]:
        return as_data(PausedMessages(pause, self._counts.paused.get(pause.waits_for, 0)))

    def levels(self) -> Levels:
        """Return the values of the gauges."""
        size = sum(
            path.stat().st_size
            for suffix in ("", "-wal")
            if (path := self._journal_path.with_name(self._journal_path.name + suffix)).exists()
        )
        is_open = {name: dispatcher.is_open for name, dispatcher in self._parts.stations.dispatchers.items()}
        is_silent = self._parts.stations.deadlines.is_silent
        pauses = Counter(str(pause.kind) for pause in self._parts.recorder.pauses.all)
        return Levels(
            self._counts.states, self._counts.events_waiting, size, is_open, is_silent,
            {str(kind): pauses[kind] for kind in PauseKind}, sum(self._counts.paused.values()),
        )  # fmt: skip
