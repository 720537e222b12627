"""How long it takes from a kill until the last message that the worker had has ended elsewhere."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psycopg

from deliveryd.sandbox.state import SandboxState
from fleet.faults import progress
from fleet.rest import Rest, come_to_rest
from fleet.stage import Fleet, FleetWorker, open_fleet

BUSY = 50
"""Messages that wait in the queue meanwhile."""

_PATIENCE = 60.0
_HELD = """
SELECT m.id FROM message m JOIN worker w ON w.id = m.owner OR m.owner = ANY(
    SELECT id FROM worker each WHERE each.holder = w.id)
WHERE w.name = %s
"""
_UNTOLD = """
SELECT count(*) FROM unnest(%s::int8[]) AS wanted (id)
WHERE NOT EXISTS (SELECT 1 FROM event e LEFT JOIN worker w ON w.id = e.seq >> 40
    WHERE e.message_id = wanted.id AND e.status IN ('sent', 'error') AND e.seq <= coalesce(w.settled, e.seq))
"""
"""How many of these messages have no end that was told; a worker's row goes when all of its events are."""


def takeover_times(folder: Path, kills: int, lease: float, seed: int = 1) -> Sequence[float]:
    """Seconds of each takeover, under load, of two workers; the one that was killed starts again at once.

    A takeover is over when the service accepted the end of each message that the worker had. Raises
    NoPostgres.
    """
    draw = random.Random(seed)  # a plan
    times = []
    with open_fleet(folder, 2, lease=lease) as fleet, psycopg.connect(fleet.url, autocommit=True) as db:
        fleet.open()
        progress(fleet, 30)
        for _ in range(kills):
            times.append(_takeover(fleet, draw.choice(fleet.workers), db))
            progress(fleet, 30)
    return times


def _takeover(fleet: Fleet, worker: FleetWorker, db: psycopg.Connection[tuple[object, ...]]) -> float:
    held = _stopped_with(fleet, worker, db)
    worker.signal(signal.SIGKILL)
    began = time.monotonic()
    while db.execute(_UNTOLD, (held,)).fetchone() != (0,):
        if fleet.state.offers.waiting < BUSY:
            fleet.enqueue(BUSY)
        version = fleet.state.version
        fleet.state.wait_for(partial(_goes_on, version), _PATIENCE)
    return time.monotonic() - began


def _stopped_with(
    fleet: Fleet, worker: FleetWorker, db: psycopg.Connection[tuple[object, ...]]
) -> Sequence[object]:
    """Stop the process at a moment at which it has messages, and return them."""
    while True:
        worker.signal(signal.SIGSTOP)
        if held := [id_ for (id_,) in db.execute(_HELD, (worker.name,))]:
            return held
        worker.signal(signal.SIGCONT)
        progress(fleet, 1)


def _goes_on(version: int, state: SandboxState) -> bool:
    return state.version != version


def take_over_for_good(folder: Path) -> Rest:
    """Kill one of two workers and start it no more; the other one ends all. Raises NoPostgres."""
    with open_fleet(folder, 2, rate=50) as fleet:
        fleet.open()
        progress(fleet, 30)
        worker = fleet.workers[0]
        worker.is_given_up = True
        with psycopg.connect(fleet.url, autocommit=True) as db:
            _takeover(fleet, worker, db)
        return come_to_rest(fleet)
