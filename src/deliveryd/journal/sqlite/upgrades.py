"""Upgrades of the journal's format, applied when the worker or a command opens the file for writing.

To change the tables after a release, change `TABLES` in `schema` and append to `FILE_UPGRADES` the statements
that turn the released tables into these. Never change an entry that was released.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from deliveryd.telemetry.log_events import Event, LoggedProgress, log

FIRST_FORMAT = 1

STEPS_BETWEEN_LOOKS = 100_000
"""Steps of SQLite's machine between two looks at the clock: some milliseconds."""

FILE_UPGRADES: Sequence[str] = ()
"""SQL from each format to the next: the first entry turns format 1 into format 2."""


def latest_format(upgrades: Sequence[str]) -> int:
    """The format that all upgrades lead to."""
    return FIRST_FORMAT + len(upgrades)


def upgrade(db: sqlite3.Connection, version: int, upgrades: Sequence[str]) -> None:
    """Upgrade a journal from `version` to the latest format, in one transaction. Raises sqlite3.Error."""
    target = latest_format(upgrades)
    if version == target:
        return
    progress = LoggedProgress(Event.JOURNAL_UPGRADING)
    db.set_progress_handler(lambda: progress.add(0), STEPS_BETWEEN_LOOKS)
    statements = "".join(f"{sql}\n;" for sql in upgrades[version - FIRST_FORMAT :])
    try:
        db.executescript(f"BEGIN IMMEDIATE; {statements} PRAGMA user_version = {target}; COMMIT;")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    finally:
        db.set_progress_handler(None, 0)
    log(Event.JOURNAL_UPGRADED, seconds=progress.seconds)
