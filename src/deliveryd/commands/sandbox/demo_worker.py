"""A worker of the demo, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from string import Template

import anyio

from deliveryd.errors import DeliverydError
from deliveryd.sandbox.scenario import Scenario

DEMO_LEASE = 6.0
"""Seconds: the shortest lease that a configuration may have."""

WORKER_HEADER = "x-worker"
"""The header in which a provider is told which worker sends."""

_PATIENCE = 30.0
_CONFIG = Template("""\
[service]
base_url = "$base_url"
timeout = "2s"
[queue]
batch_size = 10
max_in_flight = 20
poll_interval = "100ms"
max_poll_interval = "200ms"
[settings]
cache_dir = "settings-cache"
[customers]
source = "file"
path = "customers.jsonl"
[journal]
url = "$journal"
lease = "6s"
[control]
socket = "control.sock"
[admin]
listen = ""
[receipts]
listen = "127.0.0.1:0"
[log]
level = "info"
format = "json"
$channels""")
_CHANNEL = Template("""\
[channels.$name]
adapter = "http"
url = "$base_url/$name"
json = { to = "{customer.$address}", text = "{content.text}", reference = "{message.id}" }
headers = { X-Worker = "$worker" }
provider_id = "/id"
concurrency = 5
timeout = "1s"
[channels.$name.receipt]
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
failed = ["failed"]
reported_at = "/at"
""")
_ADDRESSES = {"sms": "phone", "messenger": "messenger"}


class DemoWorker:
    """One worker: its folder with its configuration and its log, and its process."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.receipts = ""
        """The address of its receipts server, once it is ready."""
        self._folder = folder
        self._log = folder / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._running.pid

    @property
    def recorded_as(self) -> str:
        """Its name in the journal."""
        return f"{os.uname().nodename}/{self.pid}"

    def start(self, base_url: str, journal: str, scenario: Scenario) -> None:
        """Write its files, and start its process, which no signal of the terminal reaches."""
        self._folder.mkdir(mode=0o700)
        (self._folder / "customers.jsonl").write_text(scenario.customers_jsonl, encoding="utf-8")
        config = self._folder / "config.toml"
        config.write_text(_configuration(self.name, base_url, journal), encoding="utf-8")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-m", "deliveryd", "run", "--config", str(config)],
                env=_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def until_ready(self) -> None:
        """Wait until it takes messages. Raises DeliverydError if it ends, or takes too long."""
        waits_until = time.monotonic() + _PATIENCE
        while not (self.receipts and any(each["event"] == "worker.ready" for each in self._events())):
            if self._running.poll() is not None:
                raise DeliverydError(f"the demo's worker {self.name} ended at its start: {self._last_line()}")
            if time.monotonic() > waits_until:
                raise DeliverydError(
                    f"the demo's worker {self.name} isn't ready after {_PATIENCE:.0f} s: {self._last_line()}"
                )
            await anyio.sleep(0.05)
            self.receipts = next(
                (str(each["listen"]) for each in self._events() if each.get("server") == "receipts"), ""
            )

    def kill(self) -> None:
        """End the process as a dying machine does, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def end(self) -> int:
        """Let it end in order; return its exit status. It is killed if that takes too long."""
        self._running.send_signal(signal.SIGTERM)
        with anyio.move_on_after(_PATIENCE):
            while self._running.poll() is None:  # noqa: ASYNC110 - a process gives no event
                await anyio.sleep(0.02)
        self.kill()
        return self._running.wait()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the worker wasn't started")
        return self._process

    def _events(self) -> list[Mapping[str, object]]:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "it wrote nothing"


def _configuration(worker: str, base_url: str, journal: str) -> str:
    channels = [
        _CHANNEL.substitute(name=name, base_url=base_url, address=address, worker=worker)
        for name, address in _ADDRESSES.items()
    ]
    return _CONFIG.substitute(base_url=base_url, journal=journal, channels="".join(channels))


def _environment() -> Mapping[str, str]:
    """Return this process's environment without what would override the configuration."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DELIVERYD_")}
