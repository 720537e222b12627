"""The log's output: lines of the listed fields, in a layout, on a stream.

Only what is on the lists of `log_events` is written. Of other libraries' exceptions and log records, only
parts that can't carry data are kept (design 4.7). Only what configures the log loads this module: most
commands log nothing, and its library takes a tenth of their time.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import sys
import traceback
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from deliveryd.errors import LONGEST_CHAIN, DeliverydError, describe, error_causes, error_name
from deliveryd.telemetry.log_events import ERROR, FIELDS, GATE, WARNING, Event, Fields, Layout, log
from deliveryd.telemetry.output import Output, sink_of

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


# rich renders traces, which our lines never hold, and takes a fifth of the start; no thread is a greenlet
with absent("rich", "greenlet"):
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


MOST_WARNINGS = 50
"""Lines that are kept for those who look at a running worker."""

_LONGEST_TEXT = 500
_MOST_FRAMES = 30


def configure(
    level: str, layout: Layout = "auto", stream: TextIO | None = None, journal: Path = JOURNAL_SOCKET
) -> None:
    """Write all lines of `level` ("debug" to "error") and above to `stream`, by default standard error.

    `auto` is `journal` when the stream goes to systemd's journal, `console` on a terminal, `json` otherwise.
    If the stream goes to systemd's journal, lines of that layout go to the socket at `journal`, with fields.
    Calling it again replaces the earlier configuration. Other libraries' warnings and errors are included.
    """
    stream = sys.stderr if stream is None else stream
    lowest = logging.getLevelNamesMapping()[level.upper()]
    suitable = choose_layout(stream, os.environ)
    renderer = RENDERERS[suitable if layout == "auto" else layout](stream)
    if layout in ("auto", "journal") and suitable == "journal":
        renderer = with_fields(renderer, JournalSocket(journal))
    if isinstance(stream, Output):
        stream.notice = _say_dropped
    sink = sink_of(stream)
    structlog.configure(
        processors=[_redact, _Warnings(), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=lambda: sink,
        cache_logger_on_first_use=False,  # a second call must reach the loggers of the first
    )
    GATE.setLevel(lowest)
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, _Foreign)]
    root.addHandler(_Foreign(max(lowest, WARNING)))


def _say_dropped(count: int) -> None:
    log(Event.LOG_DROPPED, count=count)


def last_warnings() -> list[Mapping[str, object]]:
    """Return the last lines of warnings and errors as they were logged, with their instants."""
    kept = (each.lines for each in structlog.get_config()["processors"] if isinstance(each, _Warnings))
    return [line for lines in kept for line in lines]


def _trace(error: BaseException, depth: int = 0) -> Iterator[str]:
    """Yield an exception's traceback as files, lines and functions, without locals and messages."""
    for link in error_causes(error):
        yield f"{'  ' * depth}{_one_line(error_name(link))}"
        for frame in traceback.extract_tb(link.__traceback__, limit=-_MOST_FRAMES):
            yield f"{'  ' * depth}  {frame.filename}:{frame.lineno} in {frame.name}"
        if isinstance(link, BaseExceptionGroup) and depth < LONGEST_CHAIN:
            for member in link.exceptions[:LONGEST_CHAIN]:
                yield from _trace(member, depth + 1)


def _redact(_logger: object, level: str, raw: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Copy the allowed fields to a new line, with the number of those left out."""
    line: dict[str, Any] = {"level": level, "event": raw.pop("event")}
    error = raw.get("error")
    line |= {name: _plain(value) for name, value in raw.items() if name in FIELDS}
    if hidden := len(raw.keys() - FIELDS):
        line["redacted"] = hidden
    if isinstance(error, BaseException) and not isinstance(error, DeliverydError):
        line["exception"] = "\n".join(_trace(error))
    return line


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.name.lower()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        return _one_line(value)
    if isinstance(value, BaseException):
        return _one_line(describe(value))
    if isinstance(value, list) and all(isinstance(member, str) for member in value):
        return _one_line(", ".join(value))
    return "[redacted]"


def _one_line(text: str) -> str:
    """Truncate a text, and replace characters that could forge a line or control a terminal."""
    short = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
    return short if short.isprintable() else "".join(c if c.isprintable() else " " for c in short)


class _Warnings:
    """Keeps the last lines of warnings and errors, on their way to the output."""

    def __init__(self) -> None:
        self.lines: deque[Mapping[str, object]] = deque(maxlen=MOST_WARNINGS)

    def __call__(
        self, logger: object, level: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if level not in ("debug", "info"):
            kept = {**instant(logger, level, {}), **line}
            kept.pop("exception", None)  # for the log: it is long
            self.lines.append({"at": kept.pop("timestamp"), **kept})
        return line


class _Foreign(logging.Handler):
    """Writes the log records of libraries to the same output, under the same rules."""

    def emit(self, record: logging.LogRecord) -> None:
        level = ERROR if record.levelno >= ERROR else WARNING
        fields: Fields = {"library": record.name, "source": f"{record.module}:{record.lineno}"}
        if words := _constant_words(record):
            fields["words"] = words
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = record.exc_info[1]
        if structlog.is_configured():
            structlog.get_logger().log(level, str(Event.LIBRARY_MESSAGE), **fields)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Do nothing: logging's own report would print the record's arguments."""


def _constant_words(record: logging.LogRecord) -> str | None:
    """Return the record's unformatted message if it is a constant of the function that logged it.

    Many libraries build messages with f-strings, so even the text before formatting can hold an address. Only
    a constant of the calling function certainly holds no data.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - logging finds its caller the same way
    while frame is not None:
        code = frame.f_code
        if code.co_filename == record.pathname and code.co_name == record.funcName:
            found = isinstance(record.msg, str) and record.msg in code.co_consts
            return record.msg.strip() if found else None
        frame = frame.f_back
    return None
