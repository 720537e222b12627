"""The journal's file: made, checked, opened and configured, before anything is recorded in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from deliveryd.errors import JournalError, JournalUnusable
from deliveryd.journal.sqlite.connection import FileConnection, connect_file
from deliveryd.journal.sqlite.damage import advice, unusable
from deliveryd.journal.sqlite.files import keep_private, make_file, refuse_foreign, renew_log, verify_log
from deliveryd.journal.sqlite.format import check_header, prepare_file

LOG_LIMIT = 64 << 20
"""Bytes to which the log is cut, once no reader needs what made it longer."""

CHECKPOINT_PAGES = range(1000, 4001)
"""How many pages in the log are brought into the file together, at least and at most.

The more, the fewer are written, since one that changed often is written once; but of a small reserve the log
may not take so much that the file has no room to grow.
"""

PAGE = 4096
"""Bytes in a page of the file, as SQLite makes it."""

T = TypeVar("T")


def open_database(path: Path) -> FileConnection:
    """Open the file, or make it; one that is no journal stays exactly as it is."""
    checked(path, partial(refuse_foreign, path))
    checked(path, partial(check_header, path))
    checked(path, partial(make_file, path, _make))
    checked(path, partial(keep_private, path))
    checked(path, partial(verify_log, path))
    checked(path, partial(renew_log, path))
    db = checked(path, partial(connect_file, path))
    try:
        checked(path, partial(_configure, db))
    except BaseException:
        db.close()
        raise
    return db


def _make(path: Path) -> None:
    with closing(connect_file(path)) as db:
        _configure(db)


def checkpoint_pages(reserve: int) -> int:
    return min(max(reserve // (4 * PAGE), CHECKPOINT_PAGES[0]), CHECKPOINT_PAGES[-1])


def _configure(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA synchronous = FULL")
    prepare_file(db)
    _forget_statistics(db)
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":  # a failure that SQLite passes over
        raise JournalError("its disk can't hold a write-ahead log")
    db.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}")
    db.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten, in free pages too
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA cache_size = -16384")


def _forget_statistics(db: sqlite3.Connection) -> None:
    """Plans are made without statistics: with some SQLite up to 3.40 doesn't find rows by an expression."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'").fetchone() is not None:
        db.execute("DELETE FROM sqlite_stat1")
        db.execute("ANALYZE sqlite_master")  # reads them again


def checked(path: Path, use: Callable[[], T]) -> T:
    try:
        return use()
    except JournalError as error:
        raise JournalUnusable(f"{path} can't be used as a journal: {error}") from None
    except sqlite3.DatabaseError as error:
        raise unusable(f"{path} can't be used as a journal: {error}. {advice(error)}", error) from error
    except OSError as error:
        raise unusable(f"{path} can't be used as a journal: {error.strerror}", error) from error
