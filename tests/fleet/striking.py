"""Kills a worker at each boundary of its life, and stops it there for longer than its lease, under load."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fleet.faults import IS_OVER, PROGRESS, progress
from fleet.gate import Gate, first_passed, open_gated_fleet
from fleet.provoking import BY_EITHER, PROVOCATIONS, mix_recipients, steady_load
from fleet.rest import Rest, come_to_rest
from fleet.stage import LEASE, Fleet, FleetWorker, process_name
from fleet.watch import KILL, STOP

CASES = 12
"""Cases on one database; what they came to is judged together."""

_PATIENCE = LEASE + 8.0
"""Seconds within which a boundary is passed, also where another worker has to be fenced first."""


class Case(NamedTuple):
    """A boundary, and what happens to the worker there: `KILL` or `STOP`."""

    boundary: str
    how: str


class Struck(NamedTuple):
    """What cases on one database came to. `missed`: those whose boundary no worker came to."""

    cases: Sequence[Case]
    missed: Sequence[Case]
    rest: Rest

    def count(self, how: str) -> int:
        """How many workers were struck so."""
        return sum(case.how == how for case in self.cases if case not in self.missed)


def strike_all(folder: Path, boundaries: Sequence[str], note: Callable[[str], None]) -> Iterator[Struck]:
    """Kill and stop a worker at each of these boundaries. Raises NoPostgres."""
    cases = [Case(boundary, how) for boundary in boundaries for how in (KILL, STOP)]
    for first in range(0, len(cases), CASES):
        place = folder / str(first)
        place.mkdir()
        yield strike(place, cases[first : first + CASES], note)


def strike(folder: Path, cases: Sequence[Case], note: Callable[[str], None] = lambda _line: None) -> Struck:
    """Have each case happen to one of two workers, one after the other, and judge. Raises NoPostgres."""
    missed = []
    with open_gated_fleet(folder) as (fleet, gates):
        for worker in fleet.workers:
            mix_recipients(worker)
        fleet.state.receipt_delay = 0.0  # as early as can be: some are before the outcome is recorded
        fleet.open()
        progress(fleet, PROGRESS)
        with steady_load(fleet):
            for number, case in enumerate(cases):
                fleet.await_ready()
                worker, other = fleet.workers if number % 2 else reversed(fleet.workers)
                if _happens(fleet, gates, case, worker, other):
                    note(f"{case.how} at {case.boundary}: message {fleet.enqueued}")
                else:
                    missed.append(case)
                    note(f"{case.how} at {case.boundary}: not reached")
                progress(fleet, PROGRESS)
        return Struck(cases, missed, come_to_rest(fleet))


def _happens(
    fleet: Fleet, gates: Mapping[FleetWorker, Gate], case: Case, worker: FleetWorker, other: FleetWorker
) -> bool:
    """Strike a worker at the boundary; return whether one came to it."""
    name = case.boundary.rpartition("/")[0]
    armed = list(gates.values()) if name in BY_EITHER else [gates[worker]]
    for gate in armed:
        gate.order({case.boundary: case.how})
    if provoke := PROVOCATIONS.get(name):
        provoke(fleet, worker, other)
    struck = first_passed(armed, _PATIENCE)
    if struck is not None and case.how == STOP:
        _await_takeover(fleet, struck)
    return struck is not None


def _await_takeover(fleet: Fleet, process: int) -> None:
    """Wait until a stopped worker's lease is over, and let it go on."""
    try:
        fleet.wait_until(IS_OVER, process_name(process))
    finally:
        os.kill(process, signal.SIGCONT)


def summary(parts: Sequence[Struck]) -> tuple[str, Mapping[str, object], Sequence[str]]:
    """What all came to: as a line, as figures, and the violations."""
    missed = [case for part in parts for case in part.missed]
    names = [f"{case.boundary} ({case.how})" for case in missed]
    figures: dict[str, object] = {
        "boundaries": len({case.boundary for part in parts for case in part.cases}),
        "by kill": sum(part.count(KILL) for part in parts),
        "by stop": sum(part.count(STOP) for part in parts),
        "not reached": len(names),
        "messages": sum(part.rest.messages for part in parts),
        "repeats": sum(part.rest.repeats for part in parts),
        "receipts elsewhere": sum(part.rest.elsewhere for part in parts),
    }
    violations = [violation for part in parts for violation in part.rest.violations]
    line = (
        f"{figures['boundaries']} boundaries, {figures['by kill']} workers killed,"
        f" {figures['by stop']} stopped, {len(missed)} not reached ({', '.join(names) or 'none'});"
        f" {figures['messages']} messages, {figures['repeats']} repeated under their keys,"
        f" receipts of {figures['receipts elsewhere']} at another worker than the sender,"
        f" {len(violations)} violations"
    )
    return line, figures, violations
