"""One run of one subject: a fresh world, a fresh folder on disk, and what the run came to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis_server
from catalogue import Daemon, Place, Subject
from ledger import Findings
from process import PATIENCE, Process, subject_core, world_core
from work import Work, write_customers
from world import Conditions, World


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run; `flaws` says why there are none that count."""

    messages: int
    cpu: float
    redis_cpu: float
    peak_rss_mb: float
    seconds: float
    rate: float
    p50_ms: float
    p99_ms: float
    first_ms: float
    world_busy: float
    flaws: tuple[str, ...]
    findings: Findings

    @property
    def cpu_ms_per_1000(self) -> float:
        """CPU milliseconds of the whole process tree for 1,000 messages, its start included."""
        return self.cpu * 1e6 / self.messages


DISK = Path("/var/tmp")  # noqa: S108  # folders in it have names that nobody can guess
"""Where folders on a disk are made."""


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """A folder that is on a disk, where /tmp often isn't."""
    folder = Path(tempfile.mkdtemp(prefix="deliveryd-bench-", dir=DISK))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(
    subject: Subject,
    work: Work,
    conditions: Conditions | None = None,
    environ: Mapping[str, str] | None = None,
    keep_log: Path | None = None,
) -> Run:
    """Let a subject do the work. Raises SubjectFailed, and NoRedis for one that needs it."""
    with ExitStack() as stack:
        folder = stack.enter_context(folder_on_disk())
        redis = stack.enter_context(redis_server.running(world_core())) if subject.redis else None
        world = stack.enter_context(World(work, conditions, world_core()))
        write_customers(folder / "customers.jsonl")
        start = subject.start(Place(world.base_url, folder, redis.url if redis else ""))
        before = world.cpu
        process = Process(start.command, folder / "log", subject_core(), {**start.environ, **(environ or {})})
        try:
            if isinstance(subject, Daemon):
                world.wait_until_finished(PATIENCE)
                process.stop()
            cost = process.wait()
        finally:
            process.close()
            if keep_log:
                shutil.copy(folder / "log", keep_log)
        world_cpu, redis_cpu = world.cpu - before, redis.cpu if redis else 0.0
        found = world.report()
    return Run(
        messages=work.messages,
        cpu=cost.cpu,
        redis_cpu=redis_cpu,
        peak_rss_mb=cost.peak_rss_mb,
        seconds=found.seconds,
        rate=work.messages / found.seconds if found.seconds else 0.0,
        p50_ms=found.p50_ms,
        p99_ms=found.p99_ms,
        first_ms=(found.first_delivery - process.started) * 1000,
        world_busy=world_cpu / found.seconds if found.seconds else 0.0,
        flaws=tuple(found.flaws),
        findings=found,
    )
