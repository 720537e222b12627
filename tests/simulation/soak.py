"""Lives through the plans of many seeds, in several processes at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from simulation.drawing import seeded_plan
from simulation.figures import Figures
from simulation.kept import KeepsJournals
from simulation.kept_in_database import DatabaseJournal
from simulation.plan import Plan
from simulation.run import History, run_plan
from simulation.sharing_plan import SharedPlan, shared_plan
from simulation.sharing_run import run_shared
from simulation.story import story

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


class Setting(NamedTuple):
    """Where plans are lived through. `server`: the URL of a PostgreSQL, where the kind needs one."""

    kind: Kind = Kind.SQLITE
    server: str = ""

    def plan(self, seed: int) -> Plan | SharedPlan:
        """The plan of a seed."""
        return shared_plan(seed) if self.kind is Kind.SHARED else seeded_plan(seed)

    def live(self, seed: int) -> History:
        """Live through the plan of a seed."""
        match self.kind:
            case Kind.SQLITE:
                return run_plan(seeded_plan(seed))
            case Kind.POSTGRESQL:
                return run_plan(seeded_plan(seed), keeping_on(self.server))
            case Kind.SHARED:
                return run_shared(shared_plan(seed), self.server)


def live_through_all(
    seed: int, plans: int, jobs: int, setting: Setting, stories: Path | None = None
) -> Iterator[Share]:
    """Live through so many plans from a seed on, in so many processes.

    What happened in a plan that broke a promise is written into the folder `stories`: a real server makes no
    two runs quite alike.
    """
    firsts = range(seed, seed + plans, SHARE)
    shares = [range(first, min(first + SHARE, seed + plans)) for first in firsts]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(partial(live_through, setting=setting, stories=stories), shares)


@contextmanager
def garbage_collected_seldom() -> Iterator[None]:
    """Runs leave many cycles and use little memory: collecting them less often makes room for more plans."""
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def keeping_on(server: str) -> KeepsJournals:
    """Keep journals in databases of a PostgreSQL, by its URL."""
    return lambda plan, _folder: DatabaseJournal(server, plan)


def live_through(
    seeds: Sequence[int],
    setting: Setting = Setting(),  # noqa: B008  # a constant
    stories: Path | None = None,
) -> Share:
    """Live through the plans of these seeds."""
    figures, broken = Figures(), []
    with garbage_collected_seldom():
        for seed in seeds:
            history = setting.live(seed)
            found = list(figures.add(history))
            if found and stories is not None:
                lines = story(setting.plan(seed), history, found)
                (stories / f"{seed}.txt").write_text("\n".join(lines), encoding="utf-8")
            broken += [f"{text}    replay: {_command(setting, seed)}" for text in found]
    return Share(figures, broken)


def _command(setting: Setting, seed: int) -> str:
    return f"python -m simulation --journal {setting.kind} --replay {seed}"
