"""`python -m crashes --kills N [--sweep] [--seed S] [--json FILE]` kills workers, and judges all of it.

`--sweep` adds every failpoint at its first, its middle and its last passing, and every system call that is
made on the journal's files for a batch of ten messages.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import NamedTuple

from crashes.boundaries import names
from crashes.failpoints import Failpoint
from crashes.figures import Figures
from crashes.killing import (
    Passings,
    count_passings,
    kill_again_and_again,
    kill_at_failpoint,
    kill_at_random,
    kill_at_syscall,
    scratch,
    trace_syscalls,
)
from crashes.oracle import Account
from crashes.stage import Crew, open_crew
from support.output import say

MESSAGES = 150
KILLS = 12
"""Kills on one journal at most, under load."""

EVERY = 10.0
"""Seconds between lines that tell how far it is."""


class Task(NamedTuple):
    """A story to be told, its kind, how to tell it again, and the failpoint that it covers."""

    kind: str
    name: str
    tell: Callable[[Crew, Path], Account]
    failpoint: str | None = None


class Soak:
    """Tells stories, some at a time, each with a crew to itself."""

    def __init__(self, crews: list[Crew], pool: ThreadPoolExecutor, wanted: int) -> None:
        self.figures = Figures()
        self.began = time.monotonic()
        self._pool = pool
        self._wanted = wanted
        self._told = self.began
        self._free: queue.SimpleQueue[Crew] = queue.SimpleQueue()
        for crew in crews:
            self._free.put(crew)

    def tell(self, tasks: Iterator[Task]) -> None:
        """Tell these stories and count them."""
        futures = {self._pool.submit(self._tell, task): task for task in tasks}
        for future in as_completed(futures):
            task, account = futures[future], future.result()
            self.figures.add(task.kind, account)
            if task.failpoint is not None and account.kills:
                self.figures.failpoints.add(task.failpoint)
            for violation in account.violations:
                say(f"VIOLATION: {violation}    ({task.kind}: {task.name})")
            self._report()

    def _tell(self, task: Task) -> Account:
        crew = self._free.get()
        try:
            with scratch() as folder:
                return task.tell(crew, folder)
        except AssertionError as error:  # a worker that doesn't come to an end
            return Account([str(error)])
        finally:
            self._free.put(crew)

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._told >= EVERY:
            self._told = now
            figures, seconds = self.figures, now - self.began
            say(f"{seconds:6.0f} s: {figures.kills.total()} kills, {len(figures.violations)} violations")


def main() -> int:
    """Exit status 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m crashes", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="random kills at least, beside the sweep's")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first story of random kills")
    parser.add_argument("--sweep", action="store_true", help="every failpoint, and every system call")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="stories at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    with ExitStack() as stack:
        crews = [stack.enter_context(open_crew()) for _ in range(options.jobs)]
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        soak = Soak(crews, pool, options.kills)
        with scratch() as folder:
            passings = count_passings(crews[0], folder)
        if options.sweep:
            soak.tell(failpoints(passings))
            with scratch() as folder:
                calls = trace_syscalls(crews[0], folder)
            soak.tell(system_calls(calls))
        swept = soak.figures.kills.total()
        seeds = count(options.seed)
        while soak.figures.kills.total() - swept < options.kills:
            soak.tell(random_kills(passings, [next(seeds) for _ in range(2 * options.jobs)]))
    return conclude(soak, options.json)


def failpoints(passings: Passings) -> Iterator[Task]:
    """Every failpoint, early, in the middle and late."""

    def task(point: Failpoint) -> Task:
        def tell(crew: Crew, folder: Path) -> Account:
            return kill_at_failpoint(crew, folder, passings, point).account

        return Task("at a failpoint", f"{point.name}:{point.passing}", tell, point.name)

    for name in names():
        times = passings.of(name)
        for passing in sorted({1, (times + 1) // 2, times} - {0}):
            yield task(Failpoint(name, passing))


def system_calls(calls: Mapping[str, int]) -> Iterator[Task]:
    """Every call on the journal's files."""

    def task(call: str, number: int) -> Task:
        def tell(crew: Crew, folder: Path) -> Account:
            return kill_at_syscall(crew, folder, call, number).account

        return Task("at a system call", f"{call}:{number}", tell)

    for call, times in calls.items():
        for number in range(1, times + 1):
            yield task(call, number)


def random_kills(passings: Passings, seeds: Sequence[int]) -> Iterator[Task]:
    """Kills at random places of the progress under load, and at random boundaries."""

    def under_load(seed: int) -> Task:
        def tell(crew: Crew, folder: Path) -> Account:
            return kill_at_random(crew, folder, seed, messages=MESSAGES, kills=KILLS)

        return Task("at random, under load", f"seed {seed}", tell)

    def at_boundaries(seed: int) -> Task:
        def tell(crew: Crew, folder: Path) -> Account:
            return kill_again_and_again(crew, folder, passings, seed)

        return Task("at boundaries, in a row", f"seed {seed}", tell)

    for seed in seeds:
        yield under_load(seed)
        yield at_boundaries(seed)


def conclude(soak: Soak, path: Path | None) -> int:
    """Print the figures."""
    figures, seconds = soak.figures, time.monotonic() - soak.began
    for line in figures.lines():
        say(line)
    say(f"seconds            {seconds:9,.1f}")
    if path is not None:
        data = {**figures.as_json(), "seconds": round(seconds, 1)}
        path.write_text(json.dumps(data, indent=2), encoding="utf-8")
    return 1 if figures.violations else 0


if __name__ == "__main__":
    sys.exit(main())
