"""A subject's processes: started on a core, watched for their memory, waited for with their CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 600.0
_LOOK = 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """What a tree of processes used: CPU seconds, and the sum of each one's greatest resident memory."""

    cpu: float
    peak_rss_mb: float


class SubjectFailed(Exception):
    """A subject ended badly, or not at all."""


def subject_core() -> int | None:
    """The core for subjects, where there are two; the world has the last one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0] if len(cores) > 1 else None


def world_core() -> int | None:
    """The core for the world, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1] if len(cores) > 1 else None


def clean_up_when_told_to_end() -> None:
    """Let SIGTERM unwind like an interrupt, so that no world, no Redis and no subject is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Process:
    """A subject's first process; whatever it starts and waits for counts as its own."""

    def __init__(
        self, command: Sequence[str], log: Path, core: int | None, environ: Mapping[str, str]
    ) -> None:
        self._log = log
        self.started = time.perf_counter()
        with log.open("ab") as output, on_core(core):
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._peaks: dict[int, int] = {}
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def cpu(self) -> float:
        """CPU seconds so far of the first process and of those it has waited for."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Ask it to end."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = PATIENCE) -> Cost:
        """Return what it cost when it has ended with status 0. Raises SubjectFailed."""
        killer = threading.Timer(timeout, self.kill)
        killer.start()
        try:
            _, status, used = os.wait4(self.pid, 0)
        finally:
            killer.cancel()
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._end()
        if self._process.returncode != 0:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise SubjectFailed(f"ended with {self._process.returncode}:\n{tail}")
        return Cost(used.ru_utime + used.ru_stime, sum(self._peaks.values()) / 1024)

    def kill(self) -> None:
        """End it and all that it started."""
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave nothing behind."""
        if self._process.returncode is None:
            self.kill()
            self._process.wait()
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        # The greatest memory stands in /proc as long as the process lives; wait4 would tell the parent's too.
        while not self._over.wait(_LOOK):
            for pid in _tree(self.pid):
                self._peaks[pid] = _peak_kb(pid) or self._peaks.get(pid, 0)


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """What is started meanwhile runs on this core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text(encoding="ascii")
        except OSError:
            continue
        for child in found.split():
            yield from _tree(int(child))


def _peak_kb(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), None)
