"""Lives through the plans of many seeds, in several processes at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import NamedTuple

from simulation.drawing import seeded_plan
from simulation.figures import Figures
from simulation.run import run_plan

SHARE = 25
"""Plans that one process lives through at a time."""


class Share(NamedTuple):
    """What came of some of the plans: figures, and a sentence for each broken promise."""

    figures: Figures
    broken: list[str]


def live_through_all(seed: int, plans: int, jobs: int) -> Iterator[Share]:
    """Live through so many plans from a seed on, in so many processes."""
    firsts = range(seed, seed + plans, SHARE)
    shares = [range(first, min(first + SHARE, seed + plans)) for first in firsts]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(live_through, shares)


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


def live_through(seeds: Sequence[int]) -> Share:
    """Live through the plans of these seeds."""
    figures = Figures()
    with garbage_collected_seldom():
        broken = [
            f"{text}    replay: PYTHONPATH=tests python -m simulation --replay {seed}"
            for seed in seeds
            for text in figures.add(run_plan(seeded_plan(seed)))
        ]
    return Share(figures, broken)
