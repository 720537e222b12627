"""Workers and commands as processes, forked from one that has loaded the program: a start imports nothing."""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from support.patience import PATIENCE

TESTS = Path(__file__).resolve().parent.parent


class Forked(subprocess.Popen[bytes]):
    """A process that another one has forked, as if it were started here, with files as its streams."""

    _child_created = False
    _communication_started = False

    def __init__(self, words: Sequence[str], answer: socket.socket) -> None:
        self.args = [sys.executable, "-m", "deliveryd", *words]
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None
        self._answer = answer.makefile("rb", 0)  # unbuffered, since it is waited for
        self.pid = int(self._answer.readline())

    def poll(self) -> int | None:
        """Return how it ended; None: it hasn't."""
        return self._ended_within(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        status = self._ended_within(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            has_ended, _, _ = select.select([self._answer], [], [], timeout)
            if has_ended:
                self.returncode = int(self._answer.readline())
                self._answer.close()
        return self.returncode


def start_deliveryd(
    words: Sequence[str], *, output: int, environ: Mapping[str, str], errors: int | None = None
) -> subprocess.Popen[bytes]:
    """Start `deliveryd` with these words, in a new interpreter if the environment is meant for that.

    `errors`: the descriptor of its standard error, if it isn't `output`.
    """
    errors = output if errors is None else errors
    other = {name for name in {*environ, *os.environ} if environ.get(name) != _environ().get(name)}
    if any(name.startswith(("PYTHON", "LC_", "LANG", "LD_", "TZ")) for name in other):
        program = [sys.executable, "-m", "deliveryd", *words]
        return subprocess.Popen(program, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
    sys.audit("subprocess.Popen", sys.executable, words, None, environ)  # the quick tier starts none
    order = {"words": ["deliveryd", *words], "folder": str(Path.cwd()), "environ": dict(environ)}
    ours, theirs = socket.socketpair()
    with theirs, Path(os.devnull).open("rb") as nothing:
        given = [nothing.fileno(), output, errors, theirs.fileno()]
        socket.send_fds(_server(), [json.dumps(order).encode()], given)
    with ours:
        return Forked(words, ours)


def run_deliveryd(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `deliveryd` to its end, with more variables in its environment."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        environment = {**os.environ, **environ}
        process = start_deliveryd(words, output=output.fileno(), errors=errors.fileno(), environ=environment)
        try:
            status = process.wait(PATIENCE)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, status, _written(output), _written(errors))


def _written(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()


@cache
def _environ() -> Mapping[str, str]:
    """The environment of the process that forks, which begins with the first worker."""
    return dict(os.environ)


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", "support.fork_server", str(theirs.fileno())],
            env=_environ(), cwd=TESTS, pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours
