"""Caches that somebody else prepared: what is planted, and the traces that would show that it worked.

`name` is that of the row which the worker will look for.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

import diskcache


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._trace}",)


def a_pickle(folder: Path, trace: Path, name: str) -> None:
    """Rows for the settings that the worker will look for, of every kind that diskcache would follow."""
    with diskcache.Cache(str(folder)) as cache:
        cache.set(name, b"x", expire=None)
    db = sqlite3.connect(folder / "cache.db")
    pickled = pickle.dumps(Payload(trace))
    db.execute("UPDATE Cache SET mode = 4, value = ? WHERE key = ?", (pickled, name))
    db.execute("INSERT INTO Cache SELECT NULL, ?, 0, 0, NULL, 0, 0, NULL, 1, 4, NULL, ?", (pickled, pickled))
    db.commit()
    db.close()


def a_file_elsewhere(folder: Path, trace: Path, name: str) -> None:
    """A row that names a file outside, to be read and removed."""
    a_pickle(folder, trace, name)
    db = sqlite3.connect(folder / "cache.db")
    db.execute("UPDATE Cache SET mode = 4, value = NULL, filename = '../target'")
    db.commit()
    db.close()


def a_link(folder: Path, trace: Path, name: str) -> None:
    """The cache's file is a link to a database of somebody else's."""
    target = folder.parent / "target"
    target.unlink()
    db = sqlite3.connect(target)
    db.execute("CREATE TABLE precious (a)")
    db.commit()
    db.close()
    (folder / "cache.db").symlink_to(target)


def a_link_to_text(folder: Path, trace: Path, name: str) -> None:
    """The cache's file, and those that SQLite puts beside it, are links to a text file."""
    for linked in ("cache.db", "cache.db-wal", "cache.db-shm", "cache.db-journal"):
        (folder / linked).symlink_to(folder.parent / "target")


def a_link_to_nothing(folder: Path, trace: Path, name: str) -> None:
    """The cache's file is a link to where there is no file yet."""
    (folder / "cache.db").symlink_to(trace)


def garbage(folder: Path, trace: Path, name: str) -> None:
    """Bytes that are no database, and files that aren't the cache's."""
    (folder / "cache.db").write_bytes(bytes(range(256)) * 100)
    (folder / "cache.db-wal").write_bytes(bytes(range(256)) * 100)


def settings_of_the_cache(folder: Path, trace: Path, name: str) -> None:
    """Settings of diskcache's own, which would send it elsewhere."""
    a_pickle(folder, trace, name)
    db = sqlite3.connect(folder / "cache.db")
    planted = {
        "_directory": str(folder.parent),
        "disk_pickle_protocol": 5,
        "sqlite_temp_store": 1,
        "check": "x",
    }
    db.executemany("INSERT OR REPLACE INTO Settings VALUES (?, ?)", planted.items())
    db.commit()
    db.close()


def a_huge_row(folder: Path, trace: Path, name: str) -> None:
    """A row of the right kind that fills the memory."""
    with diskcache.Cache(str(folder), disk_min_file_size=1 << 40) as cache:
        cache.set(name, b"x", expire=None)
    db = sqlite3.connect(folder / "cache.db")
    db.execute("UPDATE Cache SET value = zeroblob(400000000) WHERE key = ?", (name,))
    db.commit()
    db.close()


PLANTED: Mapping[str, Callable[[Path, Path, str], None]] = {
    "rows with pickles": a_pickle,
    "a row that names a file": a_file_elsewhere,
    "a link to another database": a_link,
    "links to a text file": a_link_to_text,
    "a link to a file that isn't there": a_link_to_nothing,
    "garbage": garbage,
    "planted settings of diskcache": settings_of_the_cache,
    "a row of 400 MB": a_huge_row,
}
