"""A terminal that a program draws on: keys, the size, signals, and everything as it was in the end."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from deliveryd.commands.common.text_output import safe

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # a screen of its own, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
_KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down", b"\r": "enter", b"\n": "enter",
    b"\x1b": "esc", b"\x7f": "esc", b"\x03": "quit", b"\x04": "quit", b"q": "quit", b"Q": "quit", b"k": "up",
    b"j": "down",
}  # fmt: skip
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Screen:
    """Standard output as a screen within the `with` block; keys come from a terminal at standard input.

    The key `quit` stands for q, Ctrl-C and the signals that end a program, `resize` for a new size, and
    `wake` for a call of `wake`.
    """

    def __init__(self) -> None:
        self._out = sys.stdout
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._pending: list[str] = []
        self._before: list[Any] | None = None
        self._handlers: dict[int, object] = {}
        self._console = Console(
            file=io.StringIO(), force_terminal=True, highlight=False, markup=False, emoji=False
        )

    def __enter__(self) -> Self:
        for number in (*_ENDING, signal.SIGWINCH, signal.SIGTSTP):
            self._handlers[number] = signal.signal(number, self._on_signal)
        try:
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        try:
            self._give_back()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]  # as it was returned
            os.close(self._woken)
            os.close(self._waker)

    def _take(self) -> None:
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSADRAIN)  # what was typed before counts
        self._write(_ENTER)

    def _give_back(self) -> None:
        self._write(_LEAVE)
        if self._keys is not None and self._before is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height."""
        try:
            size = os.get_terminal_size(self._out.fileno())
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[Text]) -> None:
        """Replace what is shown."""
        shown = f"{_TO_END_OF_LINE}\r\n".join(map(self._with_escapes, lines))
        self._write(f"{_HOME}{shown}{_TO_END_OF_LINE}{_TO_END}")

    def _with_escapes(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(safe(line), end="", soft_wrap=True)
        return captured.get()

    def wake(self) -> None:
        """Have `key` return, from another thread."""
        self._note("w")

    def key(self, seconds: float) -> str | None:
        """Wait for a key, a signal or `wake`; None: nothing came in time."""
        if not self._pending:
            ready, _, _ = select.select(
                [self._woken, *([] if self._keys is None else [self._keys])], [], [], seconds
            )
            for descriptor in ready:
                self._pending += self._read(descriptor)
        return self._pending.pop(0) if self._pending else None

    def _read(self, descriptor: int) -> list[str]:
        data = os.read(descriptor, 256)
        if descriptor == self._woken:
            return [_NOTES[note] for note in dict.fromkeys(data.decode())]
        if not data:  # the terminal is gone
            return ["quit"]
        return _keys_in(data)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self._give_back()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._take()  # when the shell continues it
        self._note("q" if number in _ENDING else "r")

    def _note(self, note: str) -> None:
        try:
            os.write(self._waker, note.encode())
        except BlockingIOError:  # there are notes already
            return


_NOTES = {"q": "quit", "r": "resize", "w": "wake"}


def _keys_in(data: bytes) -> list[str]:
    """Return the keys in what a terminal sent at once."""
    found: list[str] = []
    while data:
        length = next((size for size in (3, 1) if data[:size] in _KEYS), 1)
        if data[:1] == b"\x1b" and len(data) > 1 and data[:3] not in _KEYS:
            return found  # a key that has no meaning here
        part, data = data[:length], data[length:]
        found.append(_KEYS.get(part) or part.decode("latin-1"))
    return found
