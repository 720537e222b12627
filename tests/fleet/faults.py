"""The faults: what happens to a worker, to its line to the database, or to the database."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping

from fleet.stage import Fleet, FleetWorker
from support.patience import PATIENCE

PROGRESS = 15
"""Messages that have to be accepted between two faults, so that each one meets work."""


IS_OVER = "SELECT coalesce(bool_and(ended IS NOT NULL), true) FROM main.worker WHERE name = %s"
"""Whether the lease of a worker's process is over."""

Fault = Callable[[Fleet, FleetWorker], None]


def kill(fleet: Fleet, worker: FleetWorker) -> None:  # all faults are called alike
    """Kill the process; another one is started in its place."""
    worker.signal(signal.SIGKILL)


def freeze(fleet: Fleet, worker: FleetWorker) -> None:
    """Stop the process until others have adopted what it had, and let it go on then."""
    name = worker.name
    worker.signal(signal.SIGSTOP)
    try:
        fleet.wait_until(IS_OVER, name)
    finally:
        worker.signal(signal.SIGCONT)


def doze(fleet: Fleet, worker: FleetWorker) -> None:
    """Stop the process for less than its lease."""
    worker.signal(signal.SIGSTOP)
    others = [each for each in fleet.workers if each is not worker]
    if others:
        progress(fleet, 3)
    worker.signal(signal.SIGCONT)


def cut(fleet: Fleet, worker: FleetWorker) -> None:  # as above
    """Cut the worker's connections to the database, wherever they are."""
    worker.line.cut()


def cut_at_commit(fleet: Fleet, worker: FleetWorker) -> None:  # as above
    """Cut the connection after a COMMIT took place, before its answer."""
    worker.line.cuts_at_commit += 1


def stall(fleet: Fleet, worker: FleetWorker) -> None:
    """Let nothing through to the database until others have adopted what the worker had."""
    name = worker.name
    worker.line.stall()
    try:
        fleet.wait_until(IS_OVER, name)
    finally:
        worker.line.flow()


def restart_database(fleet: Fleet, worker: FleetWorker) -> None:  # as above
    """Pull the database out, and start it again."""
    fleet.server.stop()
    fleet.server.start()


FAULTS: Mapping[str, Fault] = {
    "kill": kill,
    "freeze": freeze,
    "doze": doze,
    "cut": cut,
    "cut_at_commit": cut_at_commit,
    "stall": stall,
    "restart_database": restart_database,
}
OFTEN = ("kill", "cut", "cut_at_commit", "doze")
"""Faults that are over at once; the others take a whole lease, or stop everybody."""


def progress(fleet: Fleet, count: int) -> None:
    """Wait until so many more messages are accepted by the provider, while there is always work.

    Raises TimeoutError, which says what the workers complained of.
    """
    wanted = len(fleet.state.received) + count
    fleet.enqueue(2 * count)
    await_accepted(fleet, wanted)


def await_accepted(fleet: Fleet, wanted: int) -> None:
    """Wait until so many messages in all are accepted by the provider. Raises TimeoutError as above."""
    try:
        fleet.state.wait_for(lambda state: len(state.received) >= wanted, PATIENCE)
    except TimeoutError as error:
        said = [each for worker in fleet.workers for each in worker.log() if each.get("level") == "error"]
        raise TimeoutError(f"{error}; the workers' last errors: {said[-3:]}") from error


def drawn(seed: int, count: int) -> list[tuple[str, int]]:
    """So many faults, each with a number that says whom it happens to; each kind among the first ones."""
    draw = random.Random(seed)  # a plan
    names = draw.sample(sorted(FAULTS), len(FAULTS))
    while len(names) < count:
        names.append(draw.choice(OFTEN) if draw.random() < 0.8 else draw.choice(sorted(FAULTS)))
    return [(name, draw.randrange(1 << 16)) for name in names[:count]]
