"""One journal and the lives of the workers on it, among stand-ins that outlive them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from crashes.failpoints import Failpoint
from crashes.ledger import Began, Ended, LedgerWriter, Stood
from crashes.peers import Peer, Silence
from crashes.scenario import SETTINGS, Fate, Scenario
from deliveryd.journal.reader import file_reader
from deliveryd.states import State
from support.patience import PATIENCE
from support.ports import free_port

KILLED = -signal.SIGKILL
UNTIL_IDLE = "--until-idle"
MOST_LIVES = 4
"""Lives after the last kill within which everything must be done."""


class Crew(NamedTuple):
    """The processes that are started once, for all stages."""

    launcher: Peer
    standins: Peer


class Strike(NamedTuple):
    """A signal for the worker, `delay` seconds after so many records of a kind in its life."""

    kind: str
    times: int
    number: int = signal.SIGKILL
    delay: float = 0.0


class Trace(NamedTuple):
    """strace on the journal's files: what it shall do, and where its output goes."""

    options: Sequence[str]
    output: str = os.devnull


class Untraceable(Exception):
    """strace may not watch other processes here."""


class Worker(NamedTuple):
    """A worker that has been started."""

    life: int
    pid: int
    pidfd: int
    tracer: subprocess.Popen[bytes] | None


@contextmanager
def open_crew() -> Iterator[Crew]:
    """Start the processes."""
    with Peer("launcher", "--serve") as launcher, Peer("standins") as standins:
        yield Crew(launcher, standins)


class Stage:
    """A folder with a journal, a configuration and a ledger.

    `forgetful`: the service never offers again what it has handed out. `tears`: where the queue's first
    answers break off.
    """

    def __init__(
        self,
        crew: Crew,
        folder: Path,
        scenario: Scenario,
        *,
        forgetful: bool = False,
        tears: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.scenario = scenario
        self.forgetful = forgetful
        self._crew = crew
        self._life = 0
        port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        plan = _plan(scenario, port, list(tears))
        places = crew.standins.ask({"do": "open", "folder": str(folder), "plan": plan})
        scenario.prepare(folder, receipts_port=port, **places)
        self._ledger = LedgerWriter(folder / "ledger.jsonl")

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.folder / "journal.db"

    @property
    def log(self) -> str:
        """What the workers wrote."""
        path = self.folder / "worker.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def live(
        self,
        *arguments: str,
        failpoint: Failpoint | None = None,
        strike: Strike | None = None,
        counts: Path | None = None,
        trace: Trace | None = None,
    ) -> int:
        """Start a worker and see it end; return its status, a signal's number being negative."""
        worker = self.start(*arguments, failpoint=failpoint, strike=strike, counts=counts, trace=trace)
        return self.end(worker)

    def live_through(self, **how: Any) -> int:
        """A whole life: a worker that is told to end when there is nothing more to do for it."""
        return self.live(strike=self._when_done(), **how)

    def start(
        self,
        *arguments: str,
        failpoint: Failpoint | None = None,
        strike: Strike | None = None,
        counts: Path | None = None,
        trace: Trace | None = None,
    ) -> Worker:
        """Start a worker."""
        self._life += 1
        self._crew.standins.ask({"do": "begin", "offer_again": self._life > 1 and not self.forgetful})
        order = {
            "arguments": ["run", "--config", str(self.folder / "config.toml"), *arguments],
            "failpoint": failpoint,
            "counts": None if counts is None else str(counts),
            "log": str(self.folder / "worker.log"),
            "one_thread": trace is not None,
        }
        pid = self._crew.launcher.ask(order)["pid"]
        self._ledger.add(Began(self._life))
        if strike is not None:
            self._arm(pid, strike)
        try:
            tracer = None if trace is None else self._attach(pid, trace)
        except Untraceable:
            self._crew.launcher.say_line("stay")
            self._crew.launcher.hear()
            raise
        worker = Worker(self._life, pid, os.pidfd_open(pid), tracer)
        self._crew.launcher.say_line("go")
        return worker

    def end_when_done(self, worker: Worker) -> int:
        """Let a worker go on until there is nothing more to do for it, and see it end."""
        self._arm(worker.pid, self._when_done())
        return self.end(worker)

    def end(self, worker: Worker) -> int:
        """Wait until a worker has ended; one that doesn't within its time is killed, and a failure."""
        try:
            status = self._crew.launcher.hear(PATIENCE)["status"]
        except Silence:
            self.send(worker, signal.SIGKILL)
            self._crew.launcher.hear()
            raise AssertionError(f"a worker ran for {PATIENCE:g} s:\n{self.log[-4000:]}") from None
        finally:
            os.close(worker.pidfd)
            if worker.tracer is not None:
                worker.tracer.communicate(timeout=PATIENCE)
        self._ledger.add(Ended(worker.life, status))
        assert isinstance(status, int)
        return status

    def send(self, worker: Worker, number: int) -> None:
        """Send a worker a signal."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.pidfd, number)

    def stand_still(self, worker: Worker, seconds: float) -> None:
        """Wait until a worker that was sent SIGSTOP stands, leave it there for a while, and let it go on."""
        stat = Path(f"/proc/{worker.pid}/stat")
        while stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "T":
            os.sched_yield()
        ended, _, _ = select.select([worker.pidfd], [], [], seconds)
        assert not ended
        if not self.forgetful:
            self._crew.standins.ask({"do": "offer again"})
        self._ledger.add(Stood(worker.life))
        self.send(worker, signal.SIGCONT)

    def finish(self) -> None:
        """Let workers live until nothing is left to do; a report may come while one ends."""
        for _ in range(MOST_LIVES):
            self.live(UNTIL_IDLE)
            audit = file_reader(self.journal).audit()
            if not audit.events_waiting and not audit.states.get(State.WAITING):
                return

    def close(self) -> None:
        """Send the stand-ins away."""
        self._crew.standins.ask({"do": "close"})
        self._ledger.close()

    def _when_done(self) -> Strike:
        return Strike("Heard", self.scenario.expected(), signal.SIGTERM)

    def _arm(self, pid: int, strike: Strike) -> None:
        self._crew.standins.ask({"do": "arm", "pid": pid, "strike": strike})

    def _attach(self, pid: int, trace: Trace) -> subprocess.Popen[bytes]:
        paths = [f"{self.journal}{suffix}" for suffix in ("", "-wal", "-shm", ".lock")]
        watched = [option for path in paths for option in ("-P", path)]
        command = ["strace", "-f", "-o", trace.output, *trace.options, *watched, "-p", str(pid)]
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        if b"attached" not in line:
            tracer.communicate(timeout=PATIENCE)
            raise Untraceable(line.decode(errors="replace").strip())
        return tracer


@contextmanager
def open_stage(crew: Crew, folder: Path, scenario: Scenario, **how: Any) -> Iterator[Stage]:
    """A stage, until the block ends; what else is given goes to `Stage`."""
    stage = Stage(crew, folder, scenario, **how)
    try:
        yield stage
    finally:
        stage.close()


def _plan(scenario: Scenario, port: int, tears: list[str]) -> Mapping[str, Any]:
    """What the stand-ins need to know."""
    return {
        "elements": scenario.elements(),
        "settings": SETTINGS,
        "receipts": f"http://127.0.0.1:{port}/receipts/inApp",
        "unheard": scenario.ids_of(Fate.UNHEARD),
        "held": len(scenario.ids_of(Fate.HELD)),
        "lossy": scenario.lossy,
        "tears": tears,
    }


def read_counts(path: Path) -> dict[str, int]:
    """How often each boundary was passed in a life."""
    counts: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    return counts
