"""A line on standard error that says how far a long reading came, for a person who waits at a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from deliveryd.inspection.customer_export import Progress

QUIET = 1.0
"""Seconds before anything is shown: most readings are over by then."""

REDRAW_PAUSE = 0.2
_BLANK = "\r\x1b[K"


class ProgressLine:
    """Shows progress on `stream` when that is a terminal, and nothing otherwise."""

    def __init__(
        self, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic, *, beside_output: bool
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._now = now
        self._due = now() + QUIET
        can_rewrite = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._wanted = can_rewrite and not beside_output
        self._shown = False

    def came_to(self, progress: Progress) -> None:
        """Show it, now and then."""
        if self._wanted and self._now() >= self._due:
            self._due = self._now() + REDRAW_PAUSE
            self._shown = True
            self._stream.write(f"{_BLANK}{progress.told()} ...")
            self._stream.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write(_BLANK)
            self._stream.flush()
            self._shown = False
