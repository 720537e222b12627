"""The journal's files: their folder, creation, permissions, and the log after an unclean shutdown.

Paths are resolved before they get here (`journal.path` of the configuration), so that the log and the locks
are beside the file itself. A path that ends in a symbolic link, or a file of another user, is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deliveryd.errors import JournalUnusable
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sqlite.connection import unusable
from deliveryd.runtime.rights import WRITE, NotOwn, check_own, may_others, open_own, shared_group, user_name
from deliveryd.telemetry.log_events import Event, log

LOCK = ".lock"
WORKER_LOCK = ".worker"
FILES = ("", "-wal", "-shm", "-journal", LOCK, WORKER_LOCK)
"""Suffixes of all files that belong to a journal."""

SLACK = 4096
"""Free pages (16 MiB) that stay in the file for reuse, in addition to an eighth of all pages."""

_INCREMENTAL = 2
_OTHERS = 0o077
_OTHERS_WRITE = 0o022
_PORTION = 1 << 20
_LOG_HEADER = 32
_LOG_MARKS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


def make_folder(folder: Path) -> None:
    """Create a folder with mode 0700, durably, if it doesn't exist. Raises OSError."""
    if folder.is_dir():
        return
    if folder.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


def check_writable(path: Path) -> None:
    """Raise JournalError if this user can't write the journal, or create files beside it."""
    if not os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True):
        reason = f"this user can't write to its folder: {_why_not(path.parent)}"
        raise JournalUnusable(f"{path} can't be used as a journal: {reason}")
    try:
        os.close(open_own(path, os.O_RDWR))
    except FileNotFoundError:
        return
    except NotOwn as error:
        raise JournalUnusable(f"{path} can't be used as a journal: {error.strerror}") from None
    except OSError as error:
        reason = f"this user can't write it: {error.strerror}"
        raise unusable(f"{path} can't be used as a journal: {reason}", error) from None


def shared_folder_problem(folder: Path) -> str | None:
    """Return why other users could add or replace files in the journal's folder, and what to do about it."""
    try:
        status = folder.stat()
    except OSError:  # it doesn't exist yet, or opening the journal reports it
        return None
    if os.geteuid() not in (0, status.st_uid) and status.st_uid != 0:
        owner = user_name(status.st_uid)
        return f"{folder} belongs to {owner}, who could replace the journal: {_TRUSTED}"
    if may_others(status, WRITE) or shared_group(status, WRITE) is not None:
        mend = f"run: chmod go-w {folder}; {_TRUSTED}"
        return f"other users can write to {folder}, and replace the journal: {mend}"
    return None


_TRUSTED = "where they are trusted, set journal.allow_shared_folder = true"


def _why_not(folder: Path) -> str:
    is_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    return os.strerror(errno.EROFS if is_read_only else errno.EACCES)


def make_file(path: Path, make: Callable[[Path], None]) -> bool:
    """Create the journal's file if it is absent or empty: `make` writes it under a temporary name.

    Returns whether it was created.

    A loss of power therefore never leaves an incomplete journal. Raises JournalError, OSError, and what
    `make` raises.
    """
    if path.exists() and path.lstat().st_size:
        return False
    refuse_leftovers(path)
    new = path.with_name(f"{path.name}.new")
    for suffix in FILES:
        new.with_name(new.name + suffix).unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # SQLite would let others read it
    make(new)
    new.rename(path)
    sync_folder(path.parent)
    return True


def refuse_leftovers(path: Path) -> None:
    """Raise JournalError if there is a log beside a file that is empty or absent.

    The file was a journal; SQLite would delete the log and create an empty database.
    """
    for suffix in ("-wal", "-journal"):
        leftover = path.with_name(path.name + suffix)
        if leftover.exists() and leftover.lstat().st_size:
            raise JournalUnusable(
                f"{path} is empty or gone, and {leftover.name} beside it belongs to a journal. Both are left"
                " as they are: restore the journal or a backup, or move both away to start with an empty one"
            )


def refuse_foreign(path: Path) -> None:
    """Check the owner and the link count of a journal's files, before SQLite opens them by name.

    A journal with two hard links would have two locks. Raises OSError.
    """
    for suffix in FILES:
        check_own(path.with_name(path.name + suffix))


def verify_log(path: Path) -> None:
    """Raise JournalError if the log beside a journal has an invalid header: SQLite would ignore all of it.

    Damage further inside can't be distinguished from what a loss of power leaves; SQLite ends the log there.
    """
    with suppress(FileNotFoundError), os.fdopen(open_own(wal_of(path), os.O_RDONLY), "rb") as file:
        header = file.read(_LOG_HEADER)
        if len(header) == _LOG_HEADER and any(header) and header[:4] not in _LOG_MARKS:
            raise JournalUnusable(
                f"{wal_of(path)} is damaged, and may contain the latest commits. It is left as it is:"
                " restore a backup, or move it away to continue with what the journal holds without it"
            )


def keep_private(path: Path) -> None:
    """Remove other users' permissions from the journal's files, and log where they had any.

    Raises OSError.
    """
    for file in (path.with_name(path.name + suffix) for suffix in FILES):
        if os.path.lexists(file) and _close_to_others(file):
            log(Event.JOURNAL_EXPOSED, file=str(file), reason="mended: it was open to other users")
    mode = path.parent.lstat().st_mode
    if mode & _OTHERS_WRITE and not mode & stat.S_ISVTX:
        log(Event.JOURNAL_EXPOSED, file=str(path.parent), reason="other users can change this folder")


def _close_to_others(path: Path) -> bool:
    """Remove other users' permissions from a file; return whether there were any."""
    file = open_own(path, os.O_RDONLY)
    try:
        was_open = bool(os.fstat(file).st_mode & _OTHERS)
        if was_open:
            os.fchmod(file, 0o600)
        return was_open
    finally:
        os.close(file)


def renew_log(path: Path) -> None:
    """Rewrite and sync the log that an unclean shutdown left. Raises OSError.

    If a sync failed before that shutdown, the kernel marks the pages clean and still returns their contents,
    so that no later sync would write them. Commits appended behind them could then be lost with them.
    """
    wal = wal_of(path)
    if not wal.exists():
        return
    file = open_own(wal, os.O_RDWR)
    try:
        at = 0
        while portion := os.pread(file, _PORTION, at):
            at += os.pwrite(file, portion, at)
        os.fdatasync(file)
    finally:
        os.close(file)
    sync_folder(wal.parent)


def wal_of(path: Path) -> Path:
    """Return the path of a journal's write-ahead log."""
    return path.with_name(f"{path.name}-wal")


def sync_names(path: Path) -> None:
    """Sync the folder of the journal, so that its files' names are durable. Raises OSError."""
    sync_folder(path.parent)


def sync_file(path: str | Path) -> None:
    """Sync a file's contents. Raises OSError."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names in it are durable. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def give_back_pages(db: Db, limit: int) -> int:
    """Return free pages beyond `SLACK` to the file system, at most `limit`; return how many.

    0 for a file without incremental vacuum, which can't shrink.
    """
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    surplus = min(free - SLACK - pages // 8, limit)
    if surplus <= 0 or db.execute("PRAGMA auto_vacuum").fetchone() != (_INCREMENTAL,):
        return 0
    for _ in range(surplus):  # sqlite3 steps a statement without columns once, which frees one page
        db.execute("PRAGMA incremental_vacuum(1)")
    return int(surplus)
