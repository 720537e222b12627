"""Measures what the status page costs: CPU of an idle worker's process without viewers, and with ten."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from deliveryd.sandbox.server import Sandbox

PROVIDERS = 8
VIEWERS = 10
CONFIG = """\
[service]
base_url = "{base_url}"
[settings]
cache_dir = "cache"
[journal]
url = "sqlite:///journal.db"
[admin]
listen = "127.0.0.1:{port}"
[receipts]
listen = ""
"""
PROVIDER = """\
[channels.sms.providers.p{number}]
adapter = "http"
url = "{base_url}/sms"
json = {{ text = "{{content.text}}" }}
"""


def cpu_of(process: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(process: int, seconds: float) -> float:
    """The share of a core that a process uses, in percent."""
    before, began = cpu_of(process), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_of(process) - before) / (time.monotonic() - began)


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that is ready, for as long as the block lasts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(folder / "notify"))
        environ = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify")}
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as worker:
            try:
                while b"READY=1" not in notified.recv(1000):
                    pass
                yield worker
            finally:
                worker.terminate()


def view(url: str) -> None:
    """Read a stream for ever."""
    with urllib.request.urlopen(url) as stream:  # noqa: S310 - our own address
        while stream.readline():
            pass


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    seconds = parser.parse_args().seconds
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(Sandbox()) as sandbox,
        tempfile.TemporaryDirectory() as folder,
    ):
        config = Path(folder, "config.toml")
        base_url = sandbox.base_url
        tables = (PROVIDER.format(number=number, base_url=base_url) for number in range(PROVIDERS))
        config.write_text(CONFIG.format(base_url=base_url, port=port) + "".join(tables), encoding="utf-8")
        command = [sys.executable, "-m", "deliveryd", "run", "--config", str(config)]
        with started(command, Path(folder)) as worker:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()  # loads the server
            time.sleep(15)
            alone = share(worker.pid, seconds)
            for _ in range(VIEWERS):
                address = f"http://127.0.0.1:{port}/page/stream"
                threading.Thread(target=view, args=(address,), daemon=True).start()
            time.sleep(5)
            watched = share(worker.pid, seconds)
    print(f"idle worker, {PROVIDERS} providers: {alone:.2f} % of a core")
    print(f"with {VIEWERS} viewers of the status page: {watched:.2f} % ({watched - alone:+.2f})")


if __name__ == "__main__":
    main()
