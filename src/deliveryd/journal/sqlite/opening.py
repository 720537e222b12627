"""The journal's file: made, checked, and opened to record in it, or read beside a worker or without one."""

from __future__ import annotations

import os
import secrets
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from deliveryd.errors import JournalError, JournalLocked, JournalUnusable
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.schema import HELD_INDEX, KEEP_VALUE, MOVED_BY, MOVED_TO, TABLES, was_moved
from deliveryd.journal.sqlite.connection import FileConnection, advice, connect_file, unusable
from deliveryd.journal.sqlite.files import (
    keep_private,
    make_file,
    refuse_foreign,
    refuse_leftovers,
    renew_log,
    verify_log,
)
from deliveryd.journal.sqlite.lock import exclusive_journal, lock_owner
from deliveryd.runtime.rights import open_own
from deliveryd.telemetry.log_events import Event, log

T = TypeVar("T")

APPLICATION_ID = 0x64_6C_76_64  # "dlvd"

FILE_FORMAT = 1
"""The format of a file that this program writes and reads."""

MOVED = 1_000_000
"""What is added to the format of a file whose journal was moved: any program refuses to work on it."""

_HEADER = 100
"""Bytes of a database's header, which holds its application id and format."""


def prepare_file(db: sqlite3.Connection) -> None:
    """Create the tables in an empty file. Raises JournalError when it is no journal of this format."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (objects,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if objects == 0 and version == 0:
        _create(db)
    else:
        check_format(db)
        _renew_index(db)


def _renew_index(db: sqlite3.Connection) -> None:
    """Make the index anew that an earlier release made otherwise; it works with either."""
    if db.execute("SELECT sql FROM sqlite_master WHERE name = 'message_held'").fetchone() != (HELD_INDEX,):
        db.executescript(f"BEGIN; DROP INDEX IF EXISTS message_held; {HELD_INDEX}; COMMIT;")


def _create(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has no effect once there is a table
    db.executescript(
        f"BEGIN; {TABLES} PRAGMA user_version = {FILE_FORMAT}; PRAGMA application_id = {APPLICATION_ID};"
    )
    db.executemany(
        KEEP_VALUE,
        [("namespace", uuid.uuid4().hex[:12]), ("stop_key", secrets.token_hex(32))],
    )
    db.execute("COMMIT")


def mark_file_moved(db: sqlite3.Connection, token: str, where: str = "") -> None:
    """Mark a file's journal as moved, durably, by a move with this token; `where` is told to people."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    db.execute("BEGIN IMMEDIATE")
    db.executemany(KEEP_VALUE, [(MOVED_BY, token), (MOVED_TO, where)])
    db.execute(f"PRAGMA user_version = {version + MOVED}")
    db.execute("COMMIT")


def file_moved_by(path: Path) -> str | None:
    """The token of the move that marked a file's journal; None: it isn't marked, or no journal."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return _of_move(db, MOVED_BY)


def moved_to(path: Path) -> str | None:
    """Where a file's journal was moved to, and when; None: it isn't marked, or that wasn't recorded."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return _of_move(db, MOVED_TO) or None


def _of_move(db: sqlite3.Connection, key: str) -> str | None:
    application, version = _marks(db)
    if application != APPLICATION_ID or version <= MOVED:
        return None
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def unmark_file_moved(path: Path) -> bool:
    """Let a file's journal be used again; return whether it was marked. Raises like `check_format`."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        application, version = _marks(db)
        if version <= MOVED:
            _check_format(application, version)
            return False
        _check_format(application, version - MOVED)
        db.execute(f"PRAGMA user_version = {version - MOVED}")
        return True


def reopen_file(path: Path) -> bool:
    """Let workers use a file's journal again that was moved; return whether it was marked.

    Raises JournalLocked, JournalError.
    """
    if not path.exists():
        raise JournalUnusable(f"there is no journal at {path}")
    with exclusive_journal(path):
        return checked(path, lambda: unmark_file_moved(path))


def check_format(db: sqlite3.Connection) -> None:
    """Raise JournalError when the file isn't a journal of this format."""
    _check_format(*_marks(db), _of_move(db, MOVED_TO))


def check_header(path: Path) -> None:
    """Check the first bytes of a file without opening it in SQLite, which would replay even a foreign log.

    An absent or empty file passes. Raises JournalError when the file isn't a journal of this format; OSError.
    """
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
            header = file.read(_HEADER)
    except FileNotFoundError:
        return
    if not header:
        return
    if not header.startswith(b"SQLite format 3\0"):
        raise JournalError(
            "the file is no database; name another in journal.url, or restore a backup if it was a journal"
        )
    if len(header) < _HEADER:
        raise JournalError("the file is truncated; restore a backup")
    application, version = int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big")
    where = None
    if application == APPLICATION_ID and version > MOVED:
        with suppress(sqlite3.Error):
            where = moved_to(path)
    _check_format(application, version, where)


def _marks(db: sqlite3.Connection) -> tuple[int, int]:
    """The application id and the format of an open file."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return application, version


def _check_format(application: int, version: int, where: str | None = None) -> None:
    if application != APPLICATION_ID:
        raise JournalError("the file is a database, but no journal of deliveryd; name another in journal.url")
    if version > MOVED:
        raise JournalError(was_moved(where))
    if version != FILE_FORMAT:
        raise JournalError(
            f"the journal has format {version}, and this deliveryd supports format {FILE_FORMAT}: run the"
            " version that wrote it, restore a backup from before that version, or name another file in"
            " journal.url"
        )


LOG_LIMIT = 64 << 20
"""Bytes to which the log is cut, once no reader needs what made it longer."""

CHECKPOINT_PAGES = range(1000, 4001)
"""How many pages in the log are brought into the file together, at least and at most.

The more, the fewer are written, since one that changed often is written once; but of a small reserve the log
may not take so much that the file has no room to grow.
"""

PAGE = 4096
"""Bytes in a page of the file, as SQLite makes it."""


def open_database(path: Path) -> FileConnection:
    """Open the file, or make it; one that is no journal stays exactly as it is."""
    return checked(path, partial(_opened, path))


def _opened(path: Path) -> FileConnection:
    refuse_foreign(path)
    check_header(path)
    reason = "the file was empty" if path.exists() else "there was no file"
    if make_file(path, _make):
        log(Event.JOURNAL_CREATED, file=str(path), reason=reason)
    keep_private(path)
    verify_log(path)
    renew_log(path)
    db = connect_file(path)
    try:
        _configure(db)
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


class JournalAbsent(JournalError):
    """There is no journal yet; the first run creates it."""


def read(path: Path, query: Callable[[Db], T]) -> T:
    """Run a query in one read transaction. Raises JournalError, or JournalAbsent if there is no file.

    JournalLocked: there is none, and a process uses it; it is being created, or was removed.
    """
    return _open(path, partial(_verified, path, query))


def check_pages(path: Path, db: Db) -> None:
    """Raise JournalUnusable where pages of a file are damaged; for an audit."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise JournalUnusable(
            f"{path} is damaged: {found.splitlines()[-1]}. It is left as it is: move it away to start with an"
            " empty one, or restore a backup"
        )


def _verified(path: Path, query: Callable[[Db], T], db: FileConnection) -> T:
    try:
        check_format(db)
    except JournalError as error:
        raise JournalUnusable(f"{path} can't be read as a journal: {error}") from None
    return query(db)


def _open(path: Path, query: Callable[[Db], T]) -> T:
    try:
        refuse_foreign(path)
        size = path.lstat().st_size
    except FileNotFoundError:
        size = 0
    except OSError as error:
        raise unusable(f"{path} can't be read: {error.strerror}", error) from None
    if size == 0:
        _refuse_removed(path)
        refuse_leftovers(path)
        raise JournalAbsent(f"there is no journal at {path}: deliveryd hasn't run with it yet")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise JournalUnusable(
            f"{path} can't be read by this user; run the command as the user that deliveryd runs as"
        )
    try:
        verify_log(path)
        return _read_undisturbed(path, query)
    except sqlite3.DatabaseError as error:
        raise unusable(f"{path} can't be read as a journal: {error}. {advice(error)}", error) from error
    except OSError as error:
        raise unusable(f"{path} can't be read: {error.strerror}", error) from None


def _refuse_removed(path: Path) -> None:
    """Raise JournalLocked if a process uses a journal that is empty or absent at its path."""
    if (holder := lock_owner(path)) is not None:
        raise JournalLocked(
            f"{path} is empty or gone while process {holder} uses it: don't restart that worker, and move"
            " nothing away. The files that it has open are the only copy; its log names them"
            " (journal.misplaced)"
        )


def _read_undisturbed(path: Path, query: Callable[[Db], T]) -> T:
    # Without a log no process has the journal open. A plain read would create -wal and -shm with this user as
    # their owner, and the worker might not be allowed to write them.
    log = path.with_name(path.name + "-wal")
    if not log.exists():
        result = _query(path, "immutable=1", query)
        if not log.exists():
            return result
    return _query(path, "mode=ro", query)


def _query(path: Path, mode: str, query: Callable[[Db], T]) -> T:
    uri = f"{path.as_uri()}?{mode}"
    with closing(connect_file(uri)) as db:
        db.execute("PRAGMA query_only = ON")
        db.execute("BEGIN")
        return query(db)
