"""Connections to a file, as the journal's statements use them."""

from __future__ import annotations

import sqlite3

BUSY_TIMEOUT = 5.0
"""Seconds that a statement waits for others to let go of the file."""


class FileConnection(sqlite3.Connection):
    """A connection to a file; see `journal.db`."""

    def enter(self, log: int, /) -> None:
        """A file has one log."""


def connect_file(name: object) -> FileConnection:
    """Connect to a file, by its path or by a URI, in any thread. Raises sqlite3.Error."""
    return sqlite3.connect(
        str(name),
        uri=str(name).startswith("file:"),
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_TIMEOUT,
        factory=FileConnection,
    )
