"""A standby takes over under load: one that has all commits, or one that lags behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fleet.faults import PROGRESS, progress
from fleet.oracle import Lost
from fleet.rest import Rest, come_to_rest
from fleet.stage import Fleet, open_fleet
from support.memory import folder_of_files
from support.patience import PATIENCE
from support.postgres_cluster import PostgresCluster, Standby

REFUSED_STARTS = 1
"""Starts of each worker that have to be refused before an operator accepts the loss."""

_ALL_STOPPED = """
SELECT EXISTS (SELECT FROM main.loss WHERE accepted_at IS NULL)
    AND NOT EXISTS (SELECT FROM main.worker WHERE ended IS NULL)
"""
_REFUSAL = "no worker starts until you decide"


class FailOver(NamedTuple):
    """What a fail-over came to.

    `restarts`: processes that had to be started anew. `lost`: messages that the service counts as taken, and
    of which the database knows nothing any more.
    """

    restarts: int
    lost: frozenset[int]
    rest: Rest

    @property
    def summary(self) -> str:
        """The same in a line."""
        lost = ", ".join(map(str, sorted(self.lost))) or "none"
        return f"{self.restarts} workers started anew; lost: {lost}; {self.rest.summary}"


def fail_over_to_synchronous(folder: Path, workers: int = 2) -> FailOver:
    """The standby has all that was acknowledged: the workers go on as they are. Raises NoPostgres."""
    with open_fleet(folder, workers) as fleet:
        fleet.open()
        progress(fleet, PROGRESS)
        with _standby_of(fleet) as cluster:
            cluster.require_standby()
            progress(fleet, PROGRESS)
            before = [worker.process for worker in fleet.workers]
            _lead_to_standby(fleet, cluster)
            progress(fleet, 2 * PROGRESS)
            restarts = sum(
                worker.process is not each for worker, each in zip(fleet.workers, before, strict=True)
            )
            return FailOver(restarts, frozenset(), come_to_rest(fleet))


def fail_over_to_lagging(folder: Path, workers: int = 2) -> FailOver:
    """The standby lacks commits: all workers stop until the loss is accepted. Raises NoPostgres."""
    with open_fleet(folder, workers) as fleet:
        fleet.open()
        progress(fleet, PROGRESS)
        with _standby_of(fleet) as cluster:
            progress(fleet, PROGRESS)
            cluster.await_standby()
            cluster.standby.cut_off()
            progress(fleet, PROGRESS)
            ends = [len(worker.statuses) for worker in fleet.workers]
            _lead_to_standby(fleet, cluster)
            fleet.wait_until(_ALL_STOPPED)
            unwarranted = _starts_until_accepted(fleet, ends)
            lost = Lost(_taken_and_gone(fleet), len(fleet.state.receipts))
            _accept(fleet)
            progress(fleet, 2 * PROGRESS)
            rest = come_to_rest(fleet, lost)
            restarts = sum(map(bool, (worker.statuses for worker in fleet.workers)))
            return FailOver(
                restarts, lost.messages, rest._replace(violations=[*unwarranted, *rest.violations])
            )


@contextmanager
def _standby_of(fleet: Fleet) -> Iterator[PostgresCluster]:
    with TemporaryDirectory(prefix="standby-", dir=folder_of_files()) as folder:
        standby = Standby(Path(folder), fleet.server)
        standby.install()
        standby.start()
        try:
            yield PostgresCluster(fleet.server, standby)
        finally:
            fleet.kill()
            standby.stop()


def _lead_to_standby(fleet: Fleet, cluster: PostgresCluster) -> None:
    """Pull the primary out while messages are on their way, and lead everybody to the standby."""
    fleet.enqueue(2 * PROGRESS)
    cluster.fail_over()
    fleet.server = cluster.standby
    for worker in fleet.workers:
        worker.line.to = cluster.standby.folder


def _starts_until_accepted(fleet: Fleet, ends: list[int]) -> list[str]:
    """Wait until each worker was refused some starts; return what they did that they may not do."""
    _wait_for_ends(fleet, [each + 1 for each in ends])
    takes = fleet.state.requests["queue"]
    _wait_for_ends(fleet, [each + 1 + REFUSED_STARTS for each in ends])
    unwarranted = []
    if fleet.state.requests["queue"] != takes:
        unwarranted.append("messages were taken before the loss was accepted")
    unwarranted += [
        f"worker {number} didn't say why it doesn't start"
        for number, worker in enumerate(fleet.workers, 1)
        if _REFUSAL not in worker.folder.joinpath("worker.log").read_text(encoding="utf-8")
    ]
    return unwarranted


def _wait_for_ends(fleet: Fleet, wanted: list[int]) -> None:
    fleet.await_tended(
        lambda: all(len(worker.statuses) >= each for worker, each in zip(fleet.workers, wanted, strict=True))
    )


def _taken_and_gone(fleet: Fleet) -> frozenset[int]:
    """The messages that the service counts as taken, and that the database doesn't know."""
    taken = {int(event["messageId"]) for event in fleet.state.events}
    known = fleet.query("SELECT id FROM main.message UNION ALL SELECT id FROM main.tombstone")
    return frozenset(taken.difference(id_ for (id_,) in known))


def _accept(fleet: Fleet) -> None:
    """Accept the loss as an operator does; without --yes nothing changes."""
    for arguments, expected in (((), 1), (("--yes", "--reason", "the site is gone"), 0)):
        done = subprocess.run(
            [sys.executable, "-m", "deliveryd", "accept-loss", *arguments,
             "--config", str(fleet.workers[0].folder / "config.toml")],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        if done.returncode != expected:
            raise AssertionError(f"accept-loss {arguments}: {done.returncode}, {done.stdout} {done.stderr}")


MODES: dict[str, Callable[[Path, int], FailOver]] = {
    "sync": fail_over_to_synchronous,
    "async": fail_over_to_lagging,
}
