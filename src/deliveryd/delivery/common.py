"""What the stations of the line share."""

from __future__ import annotations

from typing import NamedTuple, Self

from deliveryd.delivery.cost_guard import CostGuard
from deliveryd.delivery.line_clock import LineClock
from deliveryd.delivery.listening import ListeningTime
from deliveryd.delivery.memory import LineMemory
from deliveryd.delivery.outcomes import Outcomes
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.waiting import Waiting
from deliveryd.journal.journal import Journal
from deliveryd.metrics import Metrics
from deliveryd.runtime.wakeup import Heartbeats


class Common(NamedTuple):
    """The journal, what is known of it in memory, and who writes to it: built before the stations."""

    journal: Journal
    memory: LineMemory
    recorder: Recorder
    waiting: Waiting
    outcomes: Outcomes
    listening: ListeningTime
    clock: LineClock
    metrics: Metrics
    heartbeats: Heartbeats
    guard: CostGuard

    @classmethod
    def beside(
        cls,
        journal: Journal,
        memory: LineMemory,
        metrics: Metrics,
        heartbeats: Heartbeats,
        *,
        longest_pause: float,
    ) -> Self:
        """The same for a journal that was opened; `longest_pause` (seconds): see `Waiting`."""
        recorder = Recorder(journal, memory, metrics)
        waiting = Waiting(journal, memory, longest_pause)
        outcomes = Outcomes(recorder, heartbeats)
        return cls(
            journal,
            memory,
            recorder,
            waiting,
            outcomes,
            ListeningTime(),
            memory.clock,
            metrics,
            heartbeats,
            CostGuard(journal, memory, recorder),
        )
