"""Processes that are told what to do by lines of JSON, and answer each by one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.patience import PATIENCE

TESTS = Path(__file__).resolve().parent.parent


class Silence(Exception):
    """No answer came in time, or the process ended."""


class Peer:
    """A module of this package, run as a process of its own between `with` and its end."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", f"crashes.{module}", *arguments]
        self._unread = b""

    def __enter__(self) -> Self:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        environ = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            self._command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def say(self, order: Mapping[str, Any]) -> None:
        """Tell it something."""
        self.say_line(json.dumps(order))

    def say_line(self, line: str) -> None:
        """Tell it a line as it is."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, patience: float = PATIENCE) -> dict[str, Any]:
        """Its next answer. Raises Silence."""
        assert self._process.stdout is not None
        ends = time.monotonic() + patience
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], max(ends - time.monotonic(), 0.0))
            part = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not part:
                raise Silence(f"{' '.join(self._command)} gave no answer within {patience:g} s")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Tell it something, and return its answer. Raises Silence."""
        self.say(order)
        return self.hear()
