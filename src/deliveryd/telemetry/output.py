"""A text stream whose writer never waits: what isn't read is kept, and beyond a bound dropped and counted."""

from __future__ import annotations

import io
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock, RLock
from typing import NamedTuple, TextIO, cast

LARGEST_BACKLOG = 1 << 20
"""Bytes that wait for the reader; further lines are dropped."""

_PIECE = select.PIPE_BUF
"""A pipe that is ready takes this many bytes at once."""

_PART = 64 << 10


class Output(io.TextIOBase):
    """Writes to what a stream writes to, without waiting and without raising.

    Each call of `write` passes whole lines. What isn't taken at once is written first by the next call, or by
    `flush`. From the first dropped line on all are dropped until everything kept is written; then `notice` is
    called with their number.
    """

    def __init__(self, stream: TextIO) -> None:
        self._kept = bytearray()
        self._lock = RLock()  # `notice` writes
        self._told = 0
        self.dropped = 0
        """Lines that were dropped since the start."""

        self.notice: Callable[[int], None] = lambda _count: None
        self._stream = stream  # its descriptor has to stay open
        self._descriptor, self._send, self._close = _open(stream.fileno())

    encoding = "utf-8"

    def writable(self) -> bool:
        """Report that it is an output."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return whether the output is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        """Write lines, after those that were kept."""
        data = text.encode(errors="backslashreplace")
        with self._lock:
            if self._kept:
                self._catch_up()
            if not self._kept:
                if (written := self._written(data)) < len(data):
                    self._kept += data[written:]
            elif self.dropped > self._told or len(self._kept) + len(data) > LARGEST_BACKLOG:
                self.dropped += data.count(b"\n")
            else:
                self._kept += data
        return len(text)

    def flush(self) -> None:
        """Write what was kept, as far as it is taken now."""
        if self._kept:
            with self._lock:
                self._catch_up()

    def finish(self, seconds: float) -> None:
        """Write what was kept; wait at most `seconds` for a reader that takes nothing."""
        ready, end = select.poll(), time.monotonic() + seconds
        ready.register(self._descriptor, select.POLLOUT)
        while self._kept and (left := end - time.monotonic()) > 0:
            happened = ready.poll(left * 1000)
            before = len(self._kept)
            self.flush()
            if len(self._kept) == before and happened:  # the reader is gone, or the disk is full
                return

    def close(self) -> None:
        """Close our descriptor; the stream stays open."""
        if not self.closed:
            super().close()
            self._close()

    def _catch_up(self) -> None:
        while self._kept:
            with memoryview(self._kept) as kept, kept[:_PART] as part:
                written = self._written(part)
            if not written:
                return
            del self._kept[:written]
        if count := self.dropped - self._told:
            self._told = self.dropped
            self.notice(count)

    def _written(self, data: bytes | memoryview) -> int:
        """Write what is taken at once; return how many bytes."""
        try:
            return self._send(data)
        except OSError:
            return 0


def unblocked(stream: TextIO) -> TextIO:
    """Return a stream that writes to the same output without waiting; one that isn't a file as it is."""
    try:
        return cast("TextIO", Output(stream))
    except (OSError, ValueError):
        return stream


def dropped_lines() -> int:
    """Return how many lines standard error lacks since the start."""
    return sys.stderr.dropped if isinstance(sys.stderr, Output) else 0


def sink_of(stream: TextIO) -> _Unblocked | _Sink:
    """Return what writes the lines of the log to a stream."""
    return _Unblocked(stream) if isinstance(stream, Output) else _Sink(stream)


class _Unblocked:
    """Writes whole lines to an output that doesn't wait."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, line: str) -> None:
        self._output.write(f"{line}\n")

    debug = info = warning = error = critical = write


class _Sink:
    """Writes whole lines to any stream; if it is closed or full, the line is lost and the worker goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = Lock()

    def write(self, line: str) -> None:
        with self._lock:
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):
                return

    debug = info = warning = error = critical = write


class _OwnDescriptor(NamedTuple):
    """A descriptor of our own, what writes to it without waiting, and what closes it."""

    descriptor: int
    send: Callable[[bytes | memoryview], int]
    close: Callable[[], None]


def _open(descriptor: int) -> _OwnDescriptor:
    """Open an output for writing without waiting.

    The flag O_NONBLOCK belongs to the open file, which other processes share, the shell for instance: setting
    it there would make their writes fail. So a pipe or a terminal is opened a second time, with the flag, and
    a socket is set with each call. What can't be opened again (a terminal of another user) is asked first.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        connection = socket.socket(fileno=os.dup(descriptor))
        return _OwnDescriptor(
            connection.fileno(), lambda data: connection.send(data, socket.MSG_DONTWAIT), connection.close
        )
    may_block = stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
    if may_block:
        with suppress(OSError):
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            return _OwnDescriptor(own, partial(os.write, own), partial(os.close, own))
    own = os.dup(descriptor)
    return _OwnDescriptor(
        own, partial(_write_if_ready if may_block else os.write, own), partial(os.close, own)
    )


def _write_if_ready(descriptor: int, data: bytes | memoryview) -> int:
    ready = select.poll()
    ready.register(descriptor, select.POLLOUT)
    return os.write(descriptor, data[:_PIECE]) if ready.poll(0) else 0
