"""The stage: a service with providers, a database, and workers that are started again when they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from deliveryd.sandbox.server import Sandbox
from deliveryd.sandbox.state import SandboxState
from fleet.balancer import Backend, Balancer, is_ready
from fleet.line_to_database import DatabaseLine, line_to
from fleet.oracle import WORKER
from support.directories import Postgres
from support.memory import folder_of_files
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.ports import free_port
from support.sandboxes import open_sandbox

LEASE = 7.0
"""Seconds: the shortest for attempts of two seconds."""

REDELIVER_AFTER = 10.0
"""Seconds after which the service offers again what was taken and of which it heard nothing."""

LOOK = 0.5
"""Seconds between two looks into the database: each is a connection of its own."""

SETTINGS = 7
CUSTOMERS = 50

_CONFIG = """\
[service]
base_url = "{base_url}"
timeout = "2s"
[queue]
batch_size = 20
max_in_flight = {places}
poll_interval = "50ms"
max_poll_interval = "200ms"
[events]
flush_interval = "20ms"
[settings]
cache_dir = "cache"
[customers]
source = "file"
path = "customers.jsonl"
[journal]
url = "postgresql://postgres@/fleet?host={line}"
lease = "{lease:.0f}s"
[control]
socket = "{line}/control.sock"
[admin]
listen = "127.0.0.1:{admin}"
[receipts]
listen = "127.0.0.1:{receipts}"
[channels.sms]
adapter = "http"
url = "{base_url}/sms"
json = {{ to = "{{customer.phone}}", text = "{{content.text}}", reference = "{{message.id}}" }}
provider_id = "/id"
timeout = "2s"
on_in_doubt = "resend"
headers = {{ {header} = "{number}" }}
rate = "{rate}/s"
retry = {{ attempts = 10, base = "100ms", max = "1s" }}
[channels.sms.receipt]
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
failed = ["failed"]
reported_at = "/at"
"""


class FleetWorker:
    """One place where a worker runs, whichever process it is at present."""

    def __init__(self, folder: Path, line: DatabaseLine, admin_port: int, backend: Backend) -> None:
        self.folder = folder
        self.line = line
        self.admin_port = admin_port
        self.backend = backend
        self.process: subprocess.Popen[bytes] | None = None
        self.statuses: list[int] = []
        """How the processes ended that weren't killed by a signal."""
        self.program: Sequence[str] = ("deliveryd",)
        """The module that is run, with what comes before the worker's own arguments."""
        self.environ: Mapping[str, str] = {}
        self.is_given_up = False
        """Whether no process is started any more."""

    @property
    def name(self) -> str:
        """The name of the process in the database."""
        assert self.process is not None
        return process_name(self.process.pid)

    def start(self) -> None:
        """Start a process."""
        with self.folder.joinpath("worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.program, "run", "--config", str(self.folder / "config.toml")],
                env={
                    **os.environ,
                    **self.environ,
                    "DELIVERYD_LOG__LEVEL": "info",
                    "DELIVERYD_LOG__FORMAT": "json",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def is_ready(self) -> bool:
        """Whether the process takes work."""
        return is_ready(self.admin_port)

    def is_up(self) -> bool:
        """Whether the process takes work, and receipts."""
        self.backend.look()
        return self.backend.is_ready and self.is_ready()

    def tend(self) -> bool:
        """Start a process if none runs, as systemd would; return whether that was so."""
        if self.is_given_up or (self.process is not None and (status := self.process.poll()) is None):
            return False
        if self.process is not None and status is not None and status >= 0:
            self.statuses.append(status)
        self.start()
        return True

    def end(self) -> int | None:
        """Let the process end by itself, in order; return its exit status, or None if there is none."""
        if self.process is None or self.is_given_up:
            return None
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def log(self) -> list[dict[str, Any]]:
        """What the processes logged so far."""
        text = self.folder.joinpath("worker.log").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Fleet:
    """All of it."""

    def __init__(self, sandbox: Sandbox, server: Postgres, workers: list[FleetWorker]) -> None:
        self.sandbox = sandbox
        self.server = server
        self.workers = workers
        self.enqueued = 0
        self._enqueuing = threading.Lock()
        self._ends = threading.Event()
        self._tending = threading.Thread(target=self._tend, daemon=True)
        self._tended = threading.Condition()

    @property
    def url(self) -> str:
        """The address of the journal, beside the workers' lines."""
        return self.server.url.replace("/postgres?", "/fleet?")

    @property
    def state(self) -> SandboxState:
        """What the service and the providers know."""
        return self.sandbox.state

    def enqueue(self, count: int) -> None:
        """Put new messages into the queue."""
        with self._enqueuing:
            ids = range(self.enqueued + 1, self.enqueued + count + 1)
            self.enqueued += count
            self.state.enqueue(*(message(id_, SETTINGS, id_ % CUSTOMERS + 1) for id_ in ids))

    def open(self) -> None:
        """Start all workers, and start each again that ends."""
        for worker in self.workers:
            worker.start()
        self._tending.start()

    def _tend(self) -> None:
        while not self._ends.wait(0.2):
            with self._tended:
                started = [worker.tend() for worker in self.workers]  # each of them, also after a start
                if any(started):
                    self._tended.notify_all()

    def await_tended(self, predicate: Callable[[], bool]) -> None:
        """Wait until `predicate` holds; looked at after each start of a worker. Raises TimeoutError."""
        with self._tended:
            if not self._tended.wait_for(predicate, PATIENCE):
                raise TimeoutError("the workers weren't started and ended as expected")

    def await_ready(self) -> None:
        """Wait until all workers take messages and receipts. Raises TimeoutError."""
        waiting = threading.Event()
        for _ in range(int(PATIENCE / LOOK)):
            if all(worker.is_given_up or worker.is_up() for worker in self.workers):
                return
            waiting.wait(LOOK)
        raise TimeoutError("the workers aren't ready")

    def kill(self) -> None:
        """Start none anew, and kill all workers that still run."""
        self._stop_tending()
        _kill(self.workers)

    def close(self) -> list[int | None]:
        """Start none anew, and end all workers in order; return their exit statuses."""
        self._stop_tending()
        return [worker.end() for worker in self.workers]

    def _stop_tending(self) -> None:
        self._ends.set()
        if self._tending.is_alive():
            self._tending.join()

    def query(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Read the database, beside the workers."""
        with psycopg.connect(self.url, autocommit=True) as db:
            return db.execute(query, values).fetchall()

    def wait_until(self, query: str, *values: object) -> None:
        """Wait until a query's first value is true. Raises TimeoutError."""
        seen = threading.Event()
        for _ in range(int(PATIENCE / LOOK)):
            with suppress(psycopg.OperationalError):
                if self.query(query, *values)[0][0]:
                    return
            seen.wait(LOOK)
        raise TimeoutError(query)


@contextmanager
def open_fleet(
    folder: Path, count: int, *, rate: int = 400, places: int = 60, lease: float = LEASE
) -> Iterator[Fleet]:
    """A stage with so many workers, none of them started yet. Raises NoPostgres.

    `rate`: messages a second that each provider takes. `places`: how many messages each worker holds at most.
    """
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="fleet-", dir=folder_of_files())))
        server = Postgres(place)
        server.install()
        server.start()
        stack.callback(lambda: server.stop() if server.is_up else None)
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("CREATE DATABASE fleet ENCODING 'UTF8' TEMPLATE template0")
        sandbox = stack.enter_context(open_sandbox())
        sandbox.state.settings[SETTINGS] = sms_settings("Hello")
        ports = [(free_port(), free_port()) for _ in range(count)]
        backends = [Backend(*each) for each in ports]
        balancer = stack.enter_context(Balancer(backends))
        sandbox.state.receipt_targets["sms"] = f"http://127.0.0.1:{balancer.port}/receipts/sms"
        sandbox.state.receipt_delay = 0.05
        sandbox.state.redeliver_after = REDELIVER_AFTER
        workers = []
        for number, (backend, (_, admin)) in enumerate(zip(backends, ports, strict=True), 1):
            line = stack.enter_context(line_to(place, place / f"line{number}"))
            workers.append(FleetWorker(folder / f"worker{number}", line, admin, backend))
            own = {"number": number, "line": place / f"line{number}"}
            _furnish(workers[-1], sandbox, own | {"rate": rate, "places": places, "lease": lease})
        fleet = Fleet(sandbox, server, workers)
        stack.callback(fleet.kill)
        yield fleet
        fleet.close()


def process_name(process: int) -> str:
    """The name in the database of a process of this machine."""
    return f"{os.uname().nodename}/{process}"


def _furnish(worker: FleetWorker, sandbox: Sandbox, terms: Mapping[str, object]) -> None:
    worker.folder.mkdir()
    worker.folder.joinpath("config.toml").write_text(
        _CONFIG.format(
            base_url=sandbox.base_url,
            receipts=worker.backend.port,
            admin=worker.admin_port,
            header=WORKER,
            **terms,
        ),
        encoding="utf-8",
    )
    worker.folder.joinpath("customers.jsonl").write_text(
        "".join(
            json.dumps({"id": id_, "name": "Ann", "phone": f"+4477009{id_:05}"}) + "\n"
            for id_ in range(1, CUSTOMERS + 1)
        ),
        encoding="utf-8",
    )


def _kill(workers: list[FleetWorker]) -> None:
    for worker in workers:
        worker.signal(signal.SIGKILL)
        if worker.process is not None:
            worker.process.wait()
