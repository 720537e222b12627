"""What is logged while a test runs, as text and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from deliveryd.telemetry import log_writing

LogLines = Callable[[], list[dict[str, Any]]]
"""Returns the lines logged so far."""


@contextmanager
def log_text(level: str) -> Iterator[io.StringIO]:
    """Log as JSON from this level on into a buffer, until the block ends."""
    stream = io.StringIO()
    log_writing.configure(level, "json", stream)
    try:
        yield stream
    finally:
        log_writing.configure("error", "json", io.StringIO())


@contextmanager
def log_lines(level: str) -> Iterator[LogLines]:
    """The same, parsed."""
    with log_text(level) as stream:
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
