"""Connections to a file, as the journal's statements use them; its errors, and what to do about them."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from deliveryd.errors import JournalError, JournalUnusable

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


_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_NOT_ALLOWED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})
_WRONG_PLACE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error means that the file is damaged, rather than that an operation failed."""
    return _code(error) in _DAMAGED


def _code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def unusable(text: str, error: OSError | sqlite3.Error) -> JournalError:
    """Return JournalUnusable if somebody has to change something, JournalError if a restart may succeed."""
    if isinstance(error, OSError):
        return JournalUnusable(text) if error.errno in _WRONG_PLACE else JournalError(text)
    return JournalUnusable(text) if _code(error) in _DAMAGED | _NOT_ALLOWED else JournalError(text)


def advice(error: sqlite3.Error) -> str:
    """Return what an operator has to do, as sentences without the final full stop."""
    if is_damage(error):
        return "It is left as it is: move it away to start with an empty one, or restore a backup"
    if _code(error) in _NOT_ALLOWED:
        return "This user can't write it: check the permissions of the file, its folder and the mount"
    return (
        "No committed data is lost, and nothing more is committed: check the disk, its free space and limits,"
        " and the kernel's log, then start deliveryd again"
    )


def abandon(db: sqlite3.Connection, path: Path) -> None:
    """Close the connection without a checkpoint, as a kill would, and leave the log to the next start.

    After a failed sync, the checkpoint of a normal close would sync the log again and trust the result (see
    `renew_log`). Only the last connection to close checkpoints, and here that is one that can't write.
    """
    with suppress(sqlite3.Error), closing(_reader(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        db.close()


def _reader(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
