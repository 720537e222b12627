"""The layouts of the log's lines, and which one suits a stream."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, TextIO

Layout = Literal["auto", "console", "json", "journal"]


def choose_layout(stream: TextIO, environ: Mapping[str, str]) -> Layout:
    """Return the layout that `auto` selects for this stream."""
    try:
        status = os.fstat(stream.fileno())
        if environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}":
            return "journal"
        return "console" if stream.isatty() else "json"
    except (OSError, ValueError):  # closed, or not a file
        return "json"
