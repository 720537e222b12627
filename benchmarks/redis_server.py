"""A Redis of the benchmark's own, for the task queues: in memory only, gone afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ports import free_port
from process import on_core

PATIENCE = 10.0


class NoRedis(Exception):
    """There is no redis-server on this machine."""


@dataclass(frozen=True, slots=True)
class Redis:
    """A running server."""

    url: str
    pid: int

    @property
    def cpu(self) -> float:
        """CPU seconds that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(core: int | None) -> Iterator[Redis]:
    """A server that keeps nothing on disk, which is the fastest it can be. Raises NoRedis."""
    program = shutil.which("redis-server")
    if program is None:
        raise NoRedis
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with on_core(core):
            process = subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield Redis(f"redis://127.0.0.1:{port}/0", process.pid)
        finally:
            process.kill()
            process.wait()


def _wait_for(port: int) -> None:
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.02)
        else:
            return
