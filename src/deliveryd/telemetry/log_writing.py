"""The log's output: lines of the listed fields, in a layout, on a stream.

Only what is on the lists of `log_events` is written. Of other libraries' exceptions and log records, only
parts that can't carry data are kept (design 4.7). Only what configures the log loads this module: most
commands log nothing, and its library takes a tenth of their time.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from deliveryd.errors import LONGEST_CHAIN, DeliverydError, describe, error_causes, error_name
from deliveryd.telemetry.layouts import (
    JOURNAL_SOCKET,
    RENDERERS,
    JournalSocket,
    choose_layout,
    instant,
    with_fields,
)
from deliveryd.telemetry.log_events import ERROR, FIELDS, GATE, WARNING, Event, Fields, Layout, log
from deliveryd.telemetry.output import Output, sink_of

# isort: split
import structlog  # loaded by layouts before, without rich

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
