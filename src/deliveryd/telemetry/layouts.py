"""How lines of the log are written: for a terminal, as JSON, for systemd's journal.

The journal's native protocol is one datagram of fields for each line.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from deliveryd.telemetry.log_events import Layout

JOURNAL_SOCKET = Path("/run/systemd/journal/socket")

_SEND_BUFFER = 8 << 20
_TOO_LARGE = frozenset({errno.EMSGSIZE, errno.ENOBUFS})
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


_NAMES = {"message_id": "MESSAGE", "settings_id": "SETTINGS"}


class JournalSocket:
    """Sends lines to the journal's socket. It is found by its path each time, since journald may restart."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def __del__(self) -> None:
        """Close the socket of a log that was replaced."""
        self._socket.close()

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one line; return whether the journal took it. Never waits and never raises."""
        datagram = b"".join(_encoded(name, value) for name, value in fields.items())
        try:
            self._socket.sendto(datagram, self._path)
        except OSError as error:
            return error.errno in _TOO_LARGE and self._send_file(datagram)
        return True

    def _send_file(self, datagram: bytes) -> bool:
        """Send what is too large for a datagram as a sealed file in memory."""
        try:
            file = os.memfd_create("deliveryd-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                with open(file, "wb", closefd=False) as out:
                    out.write(datagram)
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [file]))
                self._socket.sendmsg([], [rights], 0, self._path)
            finally:
                os.close(file)
        except OSError:
            return False
        return True


def _encoded(name: str, value: str) -> bytes:
    text = value.encode(errors="replace")
    if b"\n" not in text:
        return b"%s=%s\n" % (name.encode(), text)
    return b"%s\n%s%s\n" % (name.encode(), len(text).to_bytes(8, "little"), text)


def journal_fields(text: str, priority: int, line: Mapping[str, object]) -> Mapping[str, str]:
    """Return the fields of a line: `DELIVERYD_EVENT`, `DELIVERYD_MESSAGE` and so on, beside the text."""
    own = {f"DELIVERYD_{_NAMES.get(name) or name.upper()}": str(value) for name, value in line.items()}
    return {
        "MESSAGE": text,
        "PRIORITY": str(priority),
        "SYSLOG_IDENTIFIER": "deliveryd",
        **{name: value for name, value in own.items() if name != "DELIVERYD_LEVEL"},
    }


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Hide the packages `names` from imports meanwhile, as if they weren't installed.

    Only for libraries that have a fallback without them.
    """
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules |= dict.fromkeys(names)  # type: ignore[arg-type]  # None is how Python marks a missing module
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules |= before


with absent("rich"):  # it renders traces, which our lines never hold, and takes a fifth of the start-up time
    import structlog

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


Renderer = Callable[[object, str, MutableMapping[str, Any]], str]

instant = structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True)


def _json(_stream: TextIO) -> Renderer:
    encode = structlog.processors.JSONRenderer()

    def render(logger: object, level: str, line: MutableMapping[str, Any]) -> str:
        stamped = instant(logger, level, {})
        return str(encode(logger, level, {**stamped, **line}))

    return render


def _console(stream: TextIO) -> Renderer:
    colors = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    encode = structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=24)

    def render(logger: object, level: str, line: MutableMapping[str, Any]) -> str:
        return encode(logger, level, stamp(logger, level, line))

    return render


def _journal(_stream: TextIO) -> Renderer:
    """Return a renderer for journald, which adds the time and reads the level from the prefix."""
    encode = structlog.processors.LogfmtRenderer(bool_as_flag=False)

    def render(logger: object, level: str, line: MutableMapping[str, Any]) -> str:
        shown = {name: value for name, value in line.items() if name not in ("level", "event")}
        return f"<{PRIORITIES[level]}>{line['event']} {encode(logger, level, shown)}".rstrip()

    return render


RENDERERS: dict[Layout, Callable[[TextIO], Renderer]] = {
    "console": _console,
    "json": _json,
    "journal": _journal,
}


def with_fields(prefixed: Renderer, journal: JournalSocket) -> Renderer:
    """Return a renderer that sends lines to systemd's journal with their fields.

    A line that the journal doesn't take is returned for the stream, as `prefixed` renders it.
    """

    def render(logger: object, level: str, line: MutableMapping[str, Any]) -> str:
        text = prefixed(logger, level, line)
        if journal.send(journal_fields(text.partition(">")[2], PRIORITIES[level], line)):
            raise structlog.DropEvent
        return text

    return render


def choose_layout(stream: TextIO, environ: Mapping[str, str]) -> Layout:
    """Return the layout that `auto` selects for this stream."""
    try:
        status = os.fstat(stream.fileno())
        if environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}":
            return "journal"
        return "console" if stream.isatty() else "json"
    except (OSError, ValueError):  # closed, or not a file
        return "json"
