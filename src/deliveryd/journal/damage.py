"""What to do, and what to tell, when the journal's disk fails or its file turns out to be damaged."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from deliveryd.errors import JournalError, JournalUnusable

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_NOT_ALLOWED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})
_WRONG_PLACE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file is wrong, and not only that the disk failed to do something."""
    return _code(error) in _DAMAGED


def _code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def unusable(text: str, error: OSError | sqlite3.Error) -> JournalError:
    """The error for a journal that can't be used: whether somebody has to change it, or waiting may do."""
    if isinstance(error, OSError):
        return JournalUnusable(text) if error.errno in _WRONG_PLACE else JournalError(text)
    return JournalUnusable(text) if _code(error) in _DAMAGED | _NOT_ALLOWED else JournalError(text)


def advice(error: sqlite3.Error) -> str:
    """What an operator has to do about it, as sentences without the last full stop."""
    if is_damage(error):
        return "It is left as it is: move it away to start with an empty one, or restore a backup"
    if _code(error) in _NOT_ALLOWED:
        return "This user can't write it: look at the rights of the file and its folder, and at the mount"
    return (
        "Nothing that was acknowledged is lost, and nothing more is acknowledged: look at the disk, its room"
        " and limits, and at the kernel's log, then start deliveryd again"
    )


def abandon(db: sqlite3.Connection, path: Path) -> None:
    """Close the connection as a kill would, and leave the log to the next start.

    SQLite's own close would sync the log again after a sync of it has failed, and believe what it hears. It
    leaves that to the last connection that can write, and here another one is still reading.
    """
    with suppress(sqlite3.Error), closing(_reader(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        db.close()


def _reader(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
