"""A progress line on standard error for long reads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

QUIET = 1.0
"""Seconds before the line appears; most exports are finished by then."""

REDRAW_PAUSE = 0.2
_BLANK = "\r\x1b[K"


class ProgressText(Protocol):
    """How far something long came."""

    def text(self) -> str:
        """Return it as text."""


class ProgressLine:
    """Shows progress on `stream` if it is a terminal."""

    def __init__(
        self, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic, *, beside_output: bool
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._now = now
        self._due = now() + QUIET
        can_rewrite = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._wanted = can_rewrite and not beside_output
        self._shown = False

    def came_to(self, progress: ProgressText) -> None:
        """Show the progress, at a limited rate."""
        if self._wanted and self._now() >= self._due:
            self._due = self._now() + REDRAW_PAUSE
            self._shown = True
            self._stream.write(f"{_BLANK}{progress.text()} ...")
            self._stream.flush()

    def close(self) -> None:
        """Erase the line."""
        if self._shown:
            self._stream.write(_BLANK)
            self._stream.flush()
            self._shown = False
