"""A rolling restart under load: each worker ends in order and starts anew, one after the other."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from deliveryd.sandbox.state import SandboxState
from fleet.faults import await_accepted
from fleet.rest import Rest, come_to_rest
from fleet.stage import Fleet, FleetWorker, open_fleet

RATE = 100
"""Messages a second that each provider takes: the stand-in posts few more receipts."""

OUTSTANDING = 100
"""Messages that the queue and the workers have together: always work, and never more than one can hold."""

PLACES = 4 * OUTSTANDING
"""Messages that each worker holds at most: a worker whose places are all taken may not ask for more."""

_PATIENCE = 120.0


class _Takes:
    """When the service was asked for messages."""

    def __init__(self, state: SandboxState) -> None:
        self.times: list[float] = []
        self._state = state
        self._ends = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ends:
            seen = self._state.requests["queue"]
            self._state.wait_for(partial(_more_than, seen), _PATIENCE)
            self.times.append(time.monotonic())

    def end(self) -> None:
        """Watch no longer than until the next one."""
        self._ends = True
        self._thread.join()


def _more_than(seen: int, state: SandboxState) -> bool:
    return state.requests["queue"] > seen


class Rolled(NamedTuple):
    """What a rolling restart came to. `pauses`: the longest one without a take, in seconds, of each restart.

    `answers`: what was answered to receipts; None: no worker was there to answer.
    """

    pauses: Sequence[float]
    answers: Counter[int | None]
    rest: Rest


def roll(folder: Path, workers: int = 2, rounds: int = 2) -> Rolled:
    """Restart each of the workers so often. Raises NoPostgres."""
    with open_fleet(folder, workers, rate=RATE, places=PLACES) as fleet:
        fleet.open()
        for worker in fleet.workers:
            _await_ready(fleet, worker)
        takes = _Takes(fleet.state)
        _progress(fleet, 50)
        pauses = []
        for worker in [*fleet.workers] * rounds:
            first = len(takes.times) - 1
            _restart(fleet, worker)
            pauses.append(max(after - before for before, after in pairwise(takes.times[first:])))
        takes.end()
        rest = come_to_rest(fleet)
        return Rolled(pauses, Counter(receipt.answered for receipt in fleet.state.receipts), rest)


def _restart(fleet: Fleet, worker: FleetWorker) -> None:
    before = worker.process
    worker.backend.is_leaving = True
    _progress(fleet, 10)
    worker.signal(signal.SIGTERM)
    _await(fleet, lambda: worker.process is not before, "hasn't ended and begun anew")
    _await_ready(fleet, worker)
    worker.backend.is_leaving = False
    _progress(fleet, 50)


def _await_ready(fleet: Fleet, worker: FleetWorker) -> None:
    _await(fleet, worker.is_ready, "isn't ready")


def _await(fleet: Fleet, condition: Callable[[], bool], lacking: str) -> None:
    ends = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < ends, f"a worker {lacking} within {_PATIENCE:g} s"
        _progress(fleet, 10)


def _progress(fleet: Fleet, count: int) -> None:
    """Wait until so many more messages are accepted by the provider, after there is as much work as ever.

    Raises TimeoutError.
    """
    accepted = len(fleet.state.received)
    fleet.enqueue(OUTSTANDING - (fleet.enqueued - accepted))
    await_accepted(fleet, accepted + count)
