"""What every run begins with, made once in a process: an empty journal, an empty cache, metrics."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import patch

import trio

from deliveryd import __version__
from deliveryd.delivery import pipeline, settings, shares
from deliveryd.metrics import Metrics
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.runtime.threads import inline
from deliveryd.worker import supervisor, wiring
from simulation.kept import KeepsJournals, KeptJournal
from simulation.plan import Plan
from simulation.worker import CACHE, whole_config

IDLE_CHECK = 0.5
SAMPLE_INTERVAL = 10.0
"""Seconds between looks whether a worker is idle: fewer turns of its loops are more plans in a minute."""

FEW_FETCHES = 4
"""Settings that are asked for at a time: with few slots, few ids that hang would fill them."""

KEEP_INTERVAL = 1.0
"""Seconds between two records of how many parts the SMS of settings have."""

SPAN = 10.0
FEWEST = 5
"""Seconds between two moves of a slow provider's share, and the deliveries by which it is judged."""

MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
CACHE_FILE = "cache.db"


@contextmanager
def made_ready(plan: Plan, keep: KeepsJournals) -> Iterator[tuple[Path, KeptJournal]]:
    """The folder of one run, in memory where there is such a place, and its journal."""
    with (
        _work_folder() as folder,
        patch.object(pipeline, "IDLE_CHECK", IDLE_CHECK),
        patch.object(supervisor, "SAMPLE_INTERVAL", SAMPLE_INTERVAL),
        patch.object(settings, "MOST_FETCHES", FEW_FETCHES),
        patch.object(supervisor, "KEEP_INTERVAL", KEEP_INTERVAL),
        patch.object(shares, "SPAN", SPAN),
        patch.object(shares, "FEWEST_DELIVERIES", FEWEST),
        patch.object(wiring, "Metrics", lambda *_: _metrics()),
    ):
        (folder / CACHE).mkdir(mode=0o700)
        (folder / CACHE / CACHE_FILE).write_bytes(_empty_cache())
        with closing(keep(plan, folder)) as kept:
            yield folder, kept


@contextmanager
def _work_folder() -> Iterator[Path]:
    folder = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None, prefix="deliveryd-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@lru_cache(maxsize=1)
def _empty_cache() -> bytes:
    """A cache of settings into which nothing was put yet."""

    async def use_once(folder: Path) -> None:
        cache = DiskCache(folder, whole_config().settings.size_limit, problems.append, inline)
        await cache.get("anything")
        await cache.aclose()

    problems: list[str] = []
    with _work_folder() as folder:
        trio.run(use_once, folder)
        assert not problems
        return (folder / CACHE_FILE).read_bytes()


@lru_cache(maxsize=1)
def _metrics() -> Metrics:
    """Real ones, that all workers of this process count in."""
    return Metrics(whole_config().channels.providers, __version__)
