"""The parts that the stations of the line share, on a journal of the test."""

from __future__ import annotations

from deliveryd.delivery.common import Common
from deliveryd.delivery.memory import LineMemory
from deliveryd.delivery.outcomes import Outcomes
from deliveryd.delivery.recorder import Recorder
from deliveryd.journal.journal import Journal
from deliveryd.metrics import Metrics
from deliveryd.model import SteadyClock, WallClock
from deliveryd.runtime.wakeup import Heartbeats

HOUR = 3600.0


def memory_on(  # noqa: PLR0917 - numbers of a test
    journal: Journal,
    clock: SteadyClock | None = None,
    metrics: Metrics | None = None,
    places: int = 1000,
    batch_size: int = 500,
    max_waiting: int = 2_000_000,
) -> LineMemory:
    """A memory with so many places in flight."""
    return LineMemory.beside(
        journal,
        clock or WallClock(),
        metrics or Metrics([], "1"),
        max_in_flight=places,
        batch_size=batch_size,
        max_waiting=max_waiting,
    )


def recorder_on(journal: Journal, clock: SteadyClock | None = None) -> Recorder:
    """A recorder with a memory of its own."""
    metrics = Metrics(["sms"], "1")
    memory = memory_on(journal, clock, metrics)
    return Recorder(journal, memory, metrics)


def common_on(
    journal: Journal,
    memory: LineMemory,
    recorder: Recorder | None = None,
    metrics: Metrics | None = None,
    heartbeats: Heartbeats | None = None,
) -> Common:
    """What the stations share; with a recorder that the test watches."""
    metrics = metrics or Metrics(["sms"], "1")
    beats = heartbeats or Heartbeats()
    common = Common.beside(journal, memory, metrics, beats, longest_pause=2 * HOUR)
    return (
        common if recorder is None else common._replace(recorder=recorder, outcomes=Outcomes(recorder, beats))
    )
