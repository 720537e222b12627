"""What the stations of the line share."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.delivery.listening import ListeningTime
from deliveryd.delivery.outcomes import Outcomes
from deliveryd.delivery.recorder import Recorder
from deliveryd.journal.journal import Journal
from deliveryd.metrics import Metrics
from deliveryd.model import Clock
from deliveryd.runtime.wakeup import Heartbeats


class Common(NamedTuple):
    """What the stations share, whatever the configuration says."""

    journal: Journal
    recorder: Recorder
    outcomes: Outcomes
    clock: Clock
    metrics: Metrics
    heartbeats: Heartbeats
    listening: ListeningTime
