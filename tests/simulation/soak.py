"""Lives through the plans of many seeds, in several processes at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from simulation.drawing import seeded_plan
from simulation.figures import Figures
from simulation.kept import KeepsJournals
from simulation.kept_in_database import DatabaseJournal
from simulation.run import History, run_plan
from simulation.sharing_plan import shared_plan
from simulation.sharing_run import run_shared

SHARE = 25
"""Plans that one process lives through at a time."""


class Share(NamedTuple):
    """What came of some of the plans: figures, and a sentence for each broken promise."""

    figures: Figures
    broken: list[str]


class Kind(StrEnum):
    """Which journal, and whose."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    SHARED = "shared"
    """A PostgreSQL, which two or three workers share."""
    MODEL = "model"
    """The same, in memory."""


class Setting(NamedTuple):
    """Where plans are lived through. `server`: the URL of a PostgreSQL, where the kind needs one."""

    kind: Kind = Kind.SQLITE
    server: str = ""

    def live(self, seed: int) -> History:
        """Live through the plan of a seed."""
        match self.kind:
            case Kind.SQLITE:
                return run_plan(seeded_plan(seed))
            case Kind.POSTGRESQL:
                return run_plan(seeded_plan(seed), keeping_on(self.server))
            case Kind.SHARED | Kind.MODEL:
                return run_shared(shared_plan(seed), self.server)


def live_through_all(seed: int, plans: int, jobs: int, setting: Setting) -> Iterator[Share]:
    """Live through so many plans from a seed on, in so many processes."""
    firsts = range(seed, seed + plans, SHARE)
    shares = [range(first, min(first + SHARE, seed + plans)) for first in firsts]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(partial(live_through, setting=setting), shares)


@contextmanager
def garbage_collected_seldom() -> Iterator[None]:
    """Runs leave many cycles and use little memory: collecting them less often makes room for more plans."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def keeping_on(server: str) -> KeepsJournals:
    """Keep journals in databases of a PostgreSQL, by its URL."""
    return lambda plan, _folder: DatabaseJournal(server, plan)


def live_through(seeds: Sequence[int], setting: Setting = Setting()) -> Share:  # noqa: B008  # a constant
    """Live through the plans of these seeds."""
    figures = Figures()
    with garbage_collected_seldom():
        broken = [
            f"{text}    replay: python -m simulation --journal {setting.kind} --replay {seed}"
            for seed in seeds
            for text in figures.add(setting.live(seed))
        ]
    return Share(figures, broken)
