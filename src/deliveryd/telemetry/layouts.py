"""How lines of the log are written: for a terminal, as JSON, for systemd's journal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TextIO

from deliveryd.telemetry.journald import JournalSocket, journal_fields
from deliveryd.telemetry.layout_choice import Layout


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
