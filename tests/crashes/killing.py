"""The ways to kill a worker, each a whole story: killed, started again until all is done, and judged."""

from __future__ import annotations

import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from crashes.failpoints import Failpoint
from crashes.oracle import Account, judge
from crashes.scenario import many, one_of_each, plain
from crashes.stage import KILLED, UNTIL_IDLE, Crew, Strike, Trace, open_stage, read_counts

SYSCALLS = (
    "openat",
    "pwrite64",
    "write",
    "fdatasync",
    "fsync",
    "ftruncate",
    "unlink",
    "rename",
    "link",
    "fallocate",
)
"""Calls by which something of the journal's files may come to be otherwise."""

PROGRESS: Mapping[str, int] = {"Handed": 60, "Told": 60, "Asked": 60, "Taken": 60, "Reported": 6}
"""Places at which a random kill hits: a kind of record, and how many of them a life sees before."""

MOST_JITTER = 0.02
"""Seconds after a place in the ledger within which a random kill hits."""

_TRACED = re.compile(r"^\d+ +(\w+)\(")


class Story(NamedTuple):
    """A story's account, and whether the worker was killed where it should have been."""

    account: Account
    killed: bool


class Passings(NamedTuple):
    """How often each boundary is passed in a life that ends by SIGTERM, and in one that ends by itself."""

    first: Mapping[str, int]
    second: Mapping[str, int]

    def of(self, name: str) -> int:
        """How often, in the life in which a worker is to be killed there."""
        return self.first.get(name) or self.second.get(name, 0)


def count_passings(crew: Crew, folder: Path) -> Passings:
    """Live through the scenario undisturbed."""
    with open_stage(crew, folder, one_of_each()) as stage:
        stage.live_through(counts=folder / "first")
        stage.live(UNTIL_IDLE, counts=folder / "second")
        account = judge(stage)
    assert not account.violations, account.violations
    return Passings(read_counts(folder / "first"), read_counts(folder / "second"))


def kill_at_failpoint(crew: Crew, folder: Path, passings: Passings, failpoint: Failpoint) -> Story:
    """Kill a worker at a boundary: in its first life, or in a second one if only that passes it."""
    with open_stage(crew, folder, one_of_each()) as stage:
        if failpoint.name in passings.first:
            status = stage.live_through(failpoint=failpoint)
        else:
            stage.live_through()
            status = stage.live(UNTIL_IDLE, failpoint=failpoint)
        stage.finish()
        return Story(judge(stage), status == KILLED)


def trace_syscalls(crew: Crew, folder: Path) -> Mapping[str, int]:
    """How often each system call is made on the journal's files for a batch of ten."""
    with open_stage(crew, folder, plain(10)) as stage:
        output = folder / "trace"
        stage.live_through(trace=Trace(("-e", f"trace={','.join(SYSCALLS)}"), str(output)))
        account = judge(stage)
    assert not account.violations, account.violations
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    calls = map(_TRACED.match, lines)
    return Counter(call[1] for call in calls if call)


def kill_at_syscall(crew: Crew, folder: Path, call: str, number: int) -> Story:
    """Kill a worker when it is about to make a system call on the journal's files for the Nth time.

    Each of its threads counts for itself.
    """
    with open_stage(crew, folder, plain(10)) as stage:
        inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
        status = stage.live_through(trace=Trace(inject))
        stage.finish()
        return Story(judge(stage), status == KILLED)


def kill_at_random(crew: Crew, folder: Path, seed: int, *, messages: int, kills: int) -> Account:
    """Kill worker after worker at random places of their progress, on one journal under load.

    One service in four offers nothing twice. The account tells how many lives were really ended.
    """
    draw = random.Random(seed)
    forgetful = draw.random() < 0.25
    with open_stage(crew, folder, many(messages, draw.randrange(1 << 30)), forgetful=forgetful) as stage:
        status = KILLED
        for _ in range(kills):
            kind, most = draw.choice(list(PROGRESS.items()))
            strike = Strike(kind, draw.randrange(1, most), delay=draw.uniform(0.0, MOST_JITTER))
            status = stage.live(UNTIL_IDLE, strike=strike)
            if status != KILLED:
                break
        stage.finish()
        return judge(stage)


def kill_again_and_again(crew: Crew, folder: Path, passings: Passings, seed: int) -> Account:
    """Kill worker after worker at random boundaries, those of taking up what the last one left among them."""
    draw = random.Random(seed)
    names = sorted(passings.first)
    with open_stage(crew, folder, one_of_each()) as stage:
        for _ in range(draw.randrange(2, 5)):
            name = draw.choice(names)
            stage.live(UNTIL_IDLE, failpoint=Failpoint(name, draw.randrange(1, passings.first[name] + 1)))
        stage.finish()
        return judge(stage)


def stop(crew: Crew, folder: Path, kind: str, count: int) -> Account:
    """Let a worker stand still at a place of its progress, for longer than its patience, and go on."""
    with open_stage(crew, folder, one_of_each()._replace(timeout="1s")) as stage:
        worker = stage.start(strike=Strike(kind, count, signal.SIGSTOP))
        stage.stand_still(worker, 1.3)
        stage.end_when_done(worker)
        stage.finish()
        return judge(stage)


def tear(crew: Crew, folder: Path, how: str) -> Account:
    """Break off the queue's first answers."""
    with open_stage(crew, folder, plain(12), tears=[how] * 4) as stage:
        stage.live_through()
        stage.finish()
        return judge(stage)


@contextmanager
def scratch(root: Path | None = None) -> Iterator[Path]:
    """A folder for one story, gone afterwards."""
    folder = Path(mkdtemp(prefix="crash-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
