"""deliveryd with a deliberate break: `python -m power.launch MUTATION ...`; what follows is deliveryd's.

The journal's log is checkpointed more often than in production, so that a short life has several checkpoints.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import deliveryd.journal.sqlite.files as places
import deliveryd.journal.sqlite.journal as journals
from crashes.launcher import use_one_thread
from deliveryd.commands.app import run_program
from deliveryd.journal.sqlite import opening

SMALL_LOG = 12
"""Pages."""


def _say(pragmas: str) -> None:
    """Have these pragmas said to the journal's connection, after its own."""
    as_it_is = opening._configure

    def configure(db: sqlite3.Connection) -> None:
        as_it_is(db)
        db.executescript(pragmas)

    vars(opening)["_configure"] = configure


def _pass_over(_path: Path) -> None:
    """Stands in for what should have been done."""


def _nothing() -> None:
    """No mutation."""


def _normal() -> None:
    """SQLite no longer syncs its log at each commit."""
    _say("PRAGMA synchronous = NORMAL")


def _old_log() -> None:
    """What an unclean end left of the log is believed as it is."""

    vars(opening)["renew_log"] = _pass_over


def _no_names() -> None:
    """Names of files and folders aren't synced, save by SQLite itself."""

    vars(places)["sync_folder"] = _pass_over


MUTATIONS: Mapping[str, Callable[[], None]] = {
    "none": _nothing,
    "normal": _normal,
    "old log": _old_log,
    "no names": _no_names,
}
"""By name: what makes deliveryd worse than it is."""


if __name__ == "__main__":
    MUTATIONS[sys.argv.pop(1)]()
    vars(journals)["checkpoint_pages"] = lambda _reserve: SMALL_LOG
    use_one_thread()
    sys.argv[0] = "deliveryd"
    run_program()
