"""Where the journal lies: its folder, how its file comes to be, who may read it, its log after a bad end.

All paths here are those that links lead to (`journal.path` of the configuration), so that the companions of a
file lie beside it. No link at the end of one is followed, and no file of another user is used.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deliveryd.errors import JournalUnusable
from deliveryd.journal.damage import unusable
from deliveryd.runtime.own_files import NotOwn, check_own, open_own
from deliveryd.runtime.rights import WRITE, may_others, shared_group, user_name
from deliveryd.telemetry import Event, log

LOCK = ".lock"
WORKER_LOCK = ".worker"
FILES = ("", "-wal", "-shm", "-journal", LOCK, WORKER_LOCK)
"""What belongs to a journal, behind its name."""

_OTHERS = 0o077
_OTHERS_WRITE = 0o022
_PORTION = 1 << 20
_LOG_HEADER = 32
_LOG_MARKS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


def make_folder(folder: Path) -> None:
    """Make a folder for its owner alone, if it isn't there; a loss of power leaves it. Raises OSError."""
    if folder.is_dir():
        return
    if folder.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


def check_writable(path: Path) -> None:
    """Raise JournalError where this user can't write the journal, or make files beside it."""
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
    """Why others could put files into the journal's folder, or replace those there, and what to do."""
    try:
        status = folder.stat()
    except OSError:  # it isn't there yet, or is told of where the journal is opened
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


def make_file(path: Path, make: Callable[[Path], None]) -> None:
    """Make the journal's file, if it isn't there or is empty: `make` makes all of it, under another name.

    Thus there is no half-made journal, whenever the power fails. Raises JournalError, OSError, and what
    `make` raises.
    """
    if path.exists() and path.lstat().st_size:
        return
    refuse_leftovers(path)
    new = path.with_name(f"{path.name}.new")
    for suffix in FILES:
        new.with_name(new.name + suffix).unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # SQLite would let others read it
    make(new)
    new.rename(path)
    sync_folder(path.parent)


def refuse_leftovers(path: Path) -> None:
    """Raise JournalError where a log lies beside a file that is empty or gone.

    That was a journal, and SQLite would throw the log away to begin anew.
    """
    for suffix in ("-wal", "-journal"):
        leftover = path.with_name(path.name + suffix)
        if leftover.exists() and leftover.lstat().st_size:
            raise JournalUnusable(
                f"{path} is empty or gone, and {leftover.name} beside it belongs to a journal. Both are left"
                " as they are: restore the journal or a backup, or move both away to start with an empty one"
            )


def refuse_foreign(path: Path) -> None:
    """Look at all files of a journal before SQLite opens them by their names.

    Each is a file of ours, and has one name: a second name of the journal would have a lock of its own.
    Raises OSError.
    """
    for suffix in FILES:
        check_own(path.with_name(path.name + suffix))


def verify_log(path: Path) -> None:
    """Raise JournalError where the log beside a journal is none: SQLite would pass over all that it held.

    Damage further inside can't be told from what a loss of power leaves, and ends the log there.
    """
    with suppress(FileNotFoundError), os.fdopen(open_own(log_of(path), os.O_RDONLY), "rb") as file:
        header = file.read(_LOG_HEADER)
        if len(header) == _LOG_HEADER and any(header) and header[:4] not in _LOG_MARKS:
            raise JournalUnusable(
                f"{log_of(path)} is damaged, and may hold what was acknowledged last. It is left as it is:"
                " restore a backup, or move it away to continue with what the journal holds without it"
            )


def keep_private(path: Path) -> None:
    """Take the journal's files away from others, and say where they could read or change them.

    Raises OSError.
    """
    for file in (path.with_name(path.name + suffix) for suffix in FILES):
        if os.path.lexists(file) and _close_to_others(file):
            log(Event.JOURNAL_EXPOSED, file=str(file), reason="mended: it was open to other users")
    mode = path.parent.lstat().st_mode
    if mode & _OTHERS_WRITE and not mode & stat.S_ISVTX:
        log(Event.JOURNAL_EXPOSED, file=str(path.parent), reason="other users can change this folder")


def _close_to_others(path: Path) -> bool:
    """Take a file away from others; tell whether they had it."""
    file = open_own(path, os.O_RDONLY)
    try:
        had_it = bool(os.fstat(file).st_mode & _OTHERS)
        if had_it:
            os.fchmod(file, 0o600)
        return had_it
    finally:
        os.close(file)


def renew_log(path: Path) -> None:
    """Write what an unclean end left of the journal's log once more, and sync it. Raises OSError.

    A sync may have failed in that end. Then the system still shows what it was about, takes it for written,
    and no later sync would bring it to the disk; commits that follow it there could be lost with it.
    """
    wal = log_of(path)
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


def log_of(path: Path) -> Path:
    """The log beside a journal."""
    return path.with_name(f"{path.name}-wal")


def sync_names(path: Path) -> None:
    """Make the names of the journal's files durable. Raises OSError."""
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
