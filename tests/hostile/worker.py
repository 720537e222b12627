"""A worker as a process, watched from outside: its memory, its processor time, its open files, its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from support.configurations import FILES, SMS_GATEWAY
from support.patience import PATIENCE

CONFIG = (
    """\
[service]
base_url = "{base_url}"
timeout = "1s"

[queue]
poll_interval = "20ms"
max_poll_interval = "50ms"

[events]
flush_interval = "20ms"

"""
    + FILES
    + """\
reserve = "0B"

[admin]
listen = ""

[receipts]
listen = "127.0.0.1:0"

[channels]
order = ["sms", "messenger", "email"]

"""
    + SMS_GATEWAY
    + """\
timeout = "1s"
retry = {{ attempts = 5, base = "20ms", max = "50ms" }}

[channels.sms.receipt]
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
failed = ["failed"]
reported_at = "/at"

[channels.sms.receipt.signature]
header = "X-Signature"
secret_file = "secret"

[channels.messenger]
adapter = "http"
url = "{base_url}/sms/{{customer.device}}?word={{content.text}}"
form = {{ text = "{{content.text}}", image = "{{content.image}}" }}
headers = {{ X-Word = "{{content.button.text}}" }}
timeout = "1s"
retry = {{ attempts = 5, base = "20ms", max = "50ms" }}

[channels.email]
adapter = "smtp"
host = "127.0.0.1"
port = {smtp_port}
tls = "none"
sender = "Club <club@example.com>"
timeout = "5s"
retry = {{ attempts = 2, base = "20ms", max = "50ms" }}
"""
)

CHATTER = frozenset(
    {"queue.taken", "queue.resumed", "events.accepted", "events.recovered", "channel.recovered"}
    | {"worker.started", "worker.ready", "server.listening", "journal.account", "journal.recovered"}
    | {"worker.draining", "worker.stopped", "journal.created"}
)
"""Lines that any calm run has."""


class Worker:
    """One `deliveryd run` in a folder, and what it has written to its log so far."""

    def __init__(self, folder: Path) -> None:
        self._lines: list[str] = []
        self._written = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deliveryd", "run", "--config", str(folder / "config.toml")],
            env={**os.environ, "DELIVERYD_LOG__LEVEL": "info", "DELIVERYD_LOG__FORMAT": "json"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stderr or ():
            with self._written:
                self._lines.append(line)
                self._written.notify_all()
        with self._written:
            self._written.notify_all()

    def lines(self, start: int = 0) -> list[dict[str, Any]]:
        """The lines of the log from one on, without those of any calm run."""
        return [line for line in map(json.loads, self._lines[start:]) if line["event"] not in CHATTER]

    @property
    def text(self) -> str:
        """All that was written."""
        return "".join(self._lines)

    def ended(self) -> int:
        """Wait until it has ended by itself; the exit status."""
        try:
            return self._process.wait(PATIENCE)
        finally:
            self.kill()

    def mark(self) -> int:
        """How many lines the log has."""
        return len(self._lines)

    def wait_for_line(self, event: str, start: int = 0) -> dict[str, Any]:
        """The first line of this event, as soon as it is there. Raises TimeoutError."""

        def found() -> dict[str, Any] | None:
            named = (json.loads(line) for line in self._lines[start:] if f'"{event}"' in line)
            return next((line for line in named if line["event"] == event), None)

        with self._written:
            self._written.wait_for(lambda: found() or not self._reader.is_alive(), PATIENCE)
        if (line := found()) is None:
            raise TimeoutError(f"no {event}: {''.join(self._lines[start:])[-2000:]}")
        return line

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def resident(self) -> float:
        """Megabytes of memory now."""
        return self._status("VmRSS")

    @property
    def peak(self) -> float:
        """Megabytes of memory at most since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        """Have the kernel measure the peak from now on."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5", encoding="ascii")

    def _status(self, name: str) -> float:
        text = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(name))

    @property
    def processor_seconds(self) -> float:
        """Processor time so far."""
        fields = (
            Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def open_files(self) -> int:
        """How many files and sockets are open."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def stop(self) -> int:
        """End it as an operator does; the exit status."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(PATIENCE)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it whatever it does."""
        if self.alive:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stderr is not None:
            self._process.stderr.close()
