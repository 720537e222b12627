"""How long it takes from a kill until the last message that the worker had has ended elsewhere."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from deliveryd.sandbox.state import SandboxState
from fleet.faults import progress
from fleet.rest import Rest, come_to_rest
from fleet.stage import Fleet, FleetWorker, open_fleet

LOAD = 10
"""Messages that come into the queue every `_PAUSE`: with many more the stand-ins would measure themselves."""

_PAUSE = 0.2
_PATIENCE = 120.0
_HELD = """
SELECT m.id FROM main.message m JOIN main.log l ON l.number = m.log JOIN main.worker w ON w.id = l.holder
WHERE w.name = %s AND m.ended_at IS NULL
"""
_LEFT = """
SELECT m.id, m.state, m.due_at, m.provider, m.tries, l::text, array(SELECT each::text FROM main.worker each)
FROM main.message m LEFT JOIN main.log l ON l.number = m.log WHERE m.id = ANY(%s)
"""
_ENDS = frozenset({"sent", "error"})


class _Untold:
    """Which of some messages have no end that the service heard of; looks at each event once."""

    def __init__(self, ids: Collection[int]) -> None:
        self.ids = set(ids)
        self._looked = 0

    def has_none(self, state: SandboxState) -> bool:
        """Whether the service heard the end of each of them."""
        for event in state.events[self._looked :]:
            if event["status"] in _ENDS:
                self.ids.discard(event["messageId"])
        self._looked = len(state.events)
        return not self.ids


def takeover_times(folder: Path, kills: int, lease: float, seed: int = 1) -> Sequence[float]:
    """Seconds of each takeover, under load, of two workers; the one that was killed starts again at once.

    A takeover is over when the service accepted the end of each message that the worker had. Raises
    NoPostgres.
    """
    draw = random.Random(seed)  # a plan
    times = []
    with open_fleet(folder, 2, lease=lease) as fleet:
        fleet.open()
        progress(fleet, 30)
        for _ in range(kills):
            times.append(_takeover(fleet, draw.choice(fleet.workers)))
            progress(fleet, 30)
    return times


def _takeover(fleet: Fleet, worker: FleetWorker) -> float:
    untold = _Untold(_stopped_with(fleet, worker))
    worker.signal(signal.SIGKILL)
    began = time.monotonic()

    while not _is_soon(fleet.state, untold):
        if time.monotonic() - began > _PATIENCE:
            raise TimeoutError(
                f"what the killed worker had isn't told: {fleet.query(_LEFT, sorted(untold.ids))}"
            )
        fleet.enqueue(LOAD)
    return time.monotonic() - began


def _is_soon(state: SandboxState, untold: _Untold) -> bool:
    try:
        state.wait_for(untold.has_none, _PAUSE)
    except TimeoutError:
        return False
    return True


def _stopped_with(fleet: Fleet, worker: FleetWorker) -> Collection[int]:
    """Stop the process at a moment at which it has messages, and return them."""
    while True:
        worker.signal(signal.SIGSTOP)
        if held := [id_ for (id_,) in fleet.query(_HELD, worker.name)]:
            return held
        worker.signal(signal.SIGCONT)
        progress(fleet, 1)


def take_over_for_good(folder: Path) -> Rest:
    """Kill one of two workers and start it no more; the other one ends all. Raises NoPostgres."""
    with open_fleet(folder, 2, rate=50) as fleet:
        fleet.open()
        progress(fleet, 30)
        worker = fleet.workers[0]
        worker.is_given_up = True
        _takeover(fleet, worker)
        return come_to_rest(fleet)
