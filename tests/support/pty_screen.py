"""A program on a terminal of a size, and what the terminal shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyte

from support.patience import PATIENCE


class PtyScreen:
    """A running program, its terminal, and the screen as pyte draws it."""

    def __init__(self, program: list[str], columns: int, lines: int, environ: dict[str, str]) -> None:
        self._master, terminal = pty.openpty()
        self._terminal = terminal
        self._resize(columns, lines)
        self.before = termios.tcgetattr(terminal)
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.process = subprocess.Popen(
            program,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**_without_size(os.environ), "TERM": "xterm-256color", **environ},
            start_new_session=True,
            preexec_fn=_as_a_shell_would,  # noqa: PLW1509  # one thread
        )

    def _resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size; the program receives SIGWINCH."""
        self._screen.resize(lines, columns)
        self._resize(columns, lines)

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self._master, keys.encode())

    def text(self) -> str:
        """What the terminal shows, without blanks at the ends of lines."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def wait_for(self, *words: str) -> str:
        """Wait until all words are shown; return the whole."""
        return self.wait_until(lambda shown: all(word in shown for word in words), str(words))

    def wait_until(self, holds: Callable[[str], bool], what: str) -> str:
        """Wait until something holds of the screen; return what is shown."""
        deadline = time.monotonic() + PATIENCE
        while not holds(self.text()):
            assert self._read(deadline), f"not shown: {what}\n{self.text()}"
        return self.text()

    def wait_for_end(self) -> int:
        """Wait until the program has ended; return its status."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(time.monotonic() + 0.2)
        self.drain()
        return self.process.wait(1)

    def drain(self) -> None:
        """Read what the program wrote so far."""
        while self._read(time.monotonic() + 0.05):
            pass

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return False
        data = os.read(self._master, 65536)
        self.raw += data
        self._stream.feed(data)
        return True

    @property
    def after(self) -> list[object]:
        """How the terminal is set now."""
        return termios.tcgetattr(self._terminal)

    @property
    def is_restored(self) -> bool:
        """Whether the terminal is as it was: its settings, its own screen, and the cursor."""
        left = self.raw.rfind(b"\x1b[?1049l") > self.raw.rfind(b"\x1b[?1049h")
        cursor = self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l")
        return left and cursor and self.after == self.before

    def close(self) -> None:
        """End the program and the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._terminal)


def _without_size(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Leave out the size of the terminal that the tests run in, which programs would believe."""
    return {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")}


def _as_a_shell_would() -> None:
    """Give a new process the terminal, and Ctrl-C, which tests in the background ignore."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def on_terminal(
    *arguments: str, columns: int = 80, lines: int = 30, code: str = "", **environ: str
) -> Iterator[PtyScreen]:
    """Run `deliveryd`, or another program of Python, with these arguments on a terminal."""
    program = [sys.executable, *(("-c", code) if code else ("-m", "deliveryd")), *arguments]
    screen = PtyScreen(program, columns, lines, environ)
    try:
        yield screen
    finally:
        screen.close()
