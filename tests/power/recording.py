"""Real lives of a worker on a journal of its own, recorded by strace: troubles, an ordered end, a kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx

from deliveryd.sandbox.faults import ApplyThenHangUp, FaultAnswer
from power.claims import Outside, Told, claims_of
from power.tracing import STRACE, Sent, Step, read_trace
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.sandboxes import open_sandbox
from support.world import World

RECEIPT = """
[channels.sms.receipt]
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
failed = ["failed"]
reported_at = "/at"
"""


class Recording(NamedTuple):
    """What workers did, one after the other, and what they told the outside. `root`: the disk's folder."""

    root: str
    steps: Sequence[Step]
    told: Sequence[Told]

    def is_of_disk(self, step: Step) -> bool:
        """Whether a step is about this folder."""
        return not isinstance(step, Sent) and f"{step.path}/".startswith(f"{self.root}/")


@dataclass
class Studio:
    """A world whose workers are recorded; their journal lies in `disk/state`, which they make themselves."""

    world: World
    mutation: str = "none"
    steps: list[Step] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        world = self.world
        self.root.mkdir()
        world.change('url = "sqlite:///journal.db"', 'url = "sqlite:///disk/state/journal.db"')
        world.change('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"')
        world.change("[queue]", "[queue]\nbatch_size = 4")
        world.add(RECEIPT)
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()

    @property
    def root(self) -> Path:
        """The folder that the disk holds."""
        return self.world.folder / "disk"

    @property
    def journal(self) -> Path:
        """The journal."""
        return self.root / "state" / "journal.db"

    @contextmanager
    def worker(self, *strace: str, end: signal.Signals = signal.SIGTERM) -> Iterator[subprocess.Popen[bytes]]:
        """A recorded worker for the time of the block, ended by a signal if it still runs then."""
        trace = self.world.folder / "trace"
        before = len(self.log())
        modules = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
        options = [*STRACE, *strace, "-o", str(trace), sys.executable, "-m", "power.launch", self.mutation]
        with self.world.folder.joinpath("worker.log").open("ab") as log:
            process = subprocess.Popen(
                [*options, "run", "--config", str(self.world.config)],
                env={
                    **os.environ, "PYTHONPATH": modules,
                    "DELIVERYD_LOG__LEVEL": "info", "DELIVERYD_LOG__FORMAT": "json",
                },
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
            if process.poll() is None:
                [pid] = re.findall(r'"pid": (\d+)', self.log()[before:])
                os.kill(int(pid), end)
            process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.steps += read_trace(trace)
        self.ports += map(int, re.findall(r'"listen": "http://[^"]*:(\d+)"', self.log()[before:]))

    def log(self) -> str:
        """All that the workers said."""
        file = self.world.folder / "worker.log"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def report(self, *ids: int) -> None:
        """Report messages as delivered, one after the other."""
        [port] = re.findall(r'"listen": "http://[^"]*:(\d+)"', self.log())[-1:]
        provider_ids = {received.message_id: received.provider_id for received in self.world.state.accepted()}
        with httpx.Client(trust_env=False) as provider:
            for id_ in ids:
                body = {"id": provider_ids[id_], "status": "delivered", "at": "2026-01-02T03:04:05.000006Z"}
                self.reported.append(provider_ids[id_])
                url = f"http://127.0.0.1:{port}/receipts/sms"
                assert provider.post(url, content=json.dumps(body)).status_code == 200

    def have_ended(self, *ids: int) -> bool:
        """Whether all of these have been reported as sent or failed."""
        return all({"sent", "error"} & set(self.world.state.statuses(id_)) for id_ in ids)

    def wait_for_ends(self, *ids: int) -> None:
        """Until all of these have been reported as sent or failed."""
        self.world.state.wait_for(lambda _: self.have_ended(*ids), PATIENCE)

    def recording(self) -> Recording:
        """What was recorded so far."""
        outside = Outside(self.ports, self.reported)
        return Recording(str(self.root), self.steps, claims_of(self.steps, outside))


@contextmanager
def open_studio(folder: Path, mutation: str = "none") -> Iterator[Studio]:
    """A studio with a sandbox of its own, whose workers are mutated (see `power.launch`)."""
    with open_sandbox() as sandbox:
        world = World(folder, sandbox)
        yield Studio(world, mutation)
        world.close()


def record_life(folder: Path, mutation: str = "none") -> Recording:
    """One life from an empty folder to an ordered end."""
    with open_studio(folder, mutation) as studio, studio.worker():
        studio.world.state.enqueue(*(message(id_) for id_ in range(1, 9)))
        studio.wait_for_ends(*range(1, 9))
    return studio.recording()


def record_lives(folder: Path, mutation: str = "none") -> Recording:
    """Three lives: one from an empty folder to an ordered end, one that is killed, and the one after that."""
    with open_studio(folder, mutation) as studio:
        state = studio.world.state
        with studio.worker():
            state.fail("provider.sms", FaultAnswer(503), ApplyThenHangUp(), FaultAnswer(400))
            state.reject_event = lambda event: event["messageId"] == 7 and event["status"] == "dequeued"
            state.enqueue(*(message(id_) for id_ in range(1, 13)), {"id": 13})
            ended = [id_ for id_ in range(1, 14) if id_ != 7]
            studio.wait_for_ends(*ended)
            studio.report(*[id_ for id_ in ended if "sent" in state.statuses(id_)][:6])
            dropped = studio.world.command(
                "dead", "drop", "--config", str(studio.world.config), "--all", "--kind", "malformed"
            )
            assert dropped.returncode == 0, dropped.stderr
        with studio.worker(end=signal.SIGKILL):
            state.enqueue(*(message(id_) for id_ in range(21, 31)))
            studio.world.state.wait_for(
                lambda state: any("sent" in state.statuses(id_) for id_ in range(21, 31)), PATIENCE
            )
        with studio.worker():
            state.enqueue(*(message(id_) for id_ in range(31, 35)))
            studio.wait_for_ends(*range(21, 35))
            studio.report(21, 22, 31)
        return studio.recording()
