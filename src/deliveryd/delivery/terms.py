"""What the stations share, and what a dispatcher works by."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.channels.base import Channel
from deliveryd.delivery.choice import Choice
from deliveryd.delivery.deadlines import Awaited, ListeningTime
from deliveryd.delivery.outcomes import Outcomes
from deliveryd.delivery.policy import DispatchPolicy, DoubtPolicy
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.recorder import Recorder
from deliveryd.journal.journal import Journal
from deliveryd.metrics import Metrics
from deliveryd.model import Clock
from deliveryd.runtime.wakeup import Heartbeats


class DispatchTerms(NamedTuple):
    """What a dispatcher works by: all of it follows from the configuration.

    `share` is how many places are the provider's own.
    """

    provider: Provider
    choice: Choice
    channel: Channel
    policy: DispatchPolicy
    doubt: DoubtPolicy
    share: int
    intermediate: frozenset[str]
    awaited: Awaited | None = None


class Common(NamedTuple):
    """What the stations share, whatever the configuration says."""

    journal: Journal
    recorder: Recorder
    outcomes: Outcomes
    clock: Clock
    metrics: Metrics
    heartbeats: Heartbeats
    listening: ListeningTime
