"""A disk cache that survives restarts. A cache that fails is bypassed and rebuilt.

diskcache would unpickle a planted row (CVE-2025-69872), and would read and remove files that a row names.
The Disk below therefore accepts nothing but bytes stored in the row itself.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio
import diskcache
from diskcache.core import MODE_RAW

from deliveryd.runtime.rights import NotOwn, check_own, open_own_folder
from deliveryd.runtime.threads import Blocking, in_thread

T = TypeVar("T")

LARGEST_VALUE = 8 << 20
"""Largest row in bytes: a planted one must not exhaust memory."""

_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}
"""Transient errors, which don't mean that the file is damaged."""


class RowRefused(Exception):
    """A row of the cache holds something that deliveryd never writes."""


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache ships no types
    """Stores text keys and bytes values in the database's rows, and refuses to read anything else."""

    def put(self, key: object) -> tuple[object, bool]:
        """Return the key's form in the database."""
        if not isinstance(key, str):
            raise TypeError("keys are texts")
        return key, True

    def get(self, key: object, raw: bool) -> object:
        """Return the key of a row."""
        if not raw or not isinstance(key, str):
            raise RowRefused("a key that isn't a text")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, object]:  # noqa: ARG002
        """Return the value's form in the database: size, mode, no file, the bytes."""
        if not isinstance(value, bytes):
            raise TypeError("values are bytes")
        return len(value), MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> bytes:
        """Return the value of a row. Raises RowRefused for a pickle, a file, or anything else foreign."""
        if mode != MODE_RAW or filename is not None or read or not isinstance(value, bytes):
            raise RowRefused("a value that isn't bytes in its row")
        return value

    def remove(self, file_path: object) -> None:
        """Remove nothing: our rows have no files, so only a planted row can name one."""


class OneConnection(diskcache.Cache):  # type: ignore[misc]  # diskcache ships no types
    """A cache whose threads, one at a time, share one connection, which `close` really closes.

    diskcache opens a connection per thread and closes only the calling thread's; the others would keep a
    broken file open and locked.
    """

    _shared: sqlite3.Connection | None = None

    def __init__(self, folder: str, **settings: Any) -> None:
        """Open the cache. If that fails, no connection stays open."""
        try:
            super().__init__(folder, **settings)
        except BaseException:
            self.close()
            raise

    @property
    def _con(self) -> sqlite3.Connection:
        if self._shared is None:
            path = f"{self._directory}/cache.db"
            self._shared = sqlite3.connect(
                path, timeout=self._timeout, isolation_level=None, check_same_thread=False
            )
            self._shared.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
            self._shared.execute("PRAGMA synchronous = NORMAL")
            self._shared.execute(
                "PRAGMA mmap_size = 0"
            )  # a mapped page of a failing disk raises SIGBUS instead of an error
        return self._shared

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        connection, self._shared = self._shared, None
        if connection is not None:
            connection.close()


class Cached(NamedTuple):
    """A stored value, and the seconds since then; None: the clock was put back behind that."""

    value: bytes
    age: float | None


class Extent(NamedTuple):
    """The size of a cache: entries, and bytes on disk."""

    entries: int
    size: int


class DiskCache:
    """Bytes by name, in a folder that only this user may read.

    Problems aren't raised, but passed to `on_problem` as sentences. `below` is put before all names:
    caches in one folder with different ones don't see each other's values.
    """

    def __init__(
        self,
        folder: Path,
        size_limit: int,
        on_problem: Callable[[str], None],
        blocking: Blocking = in_thread,
        *,
        below: str = "",
    ) -> None:
        self._folder = folder
        self._size_limit = size_limit
        self._on_problem = on_problem
        self._cache: Any = None
        self._blocking = blocking
        self._below = f"{below}/" if below else ""
        self._one_at_a_time = anyio.Lock()  # no use during a rebuild
        self._told: set[str] = set()

    @property
    def folder(self) -> Path:
        """The folder of the cache."""
        return self._folder

    async def get(self, name: str) -> Cached | None:
        """Return the value stored under a name, or None."""
        return await self._use(lambda cache: _found(*cache.get(self._below + name, tag=True)))

    async def set(self, name: str, value: bytes) -> None:
        """Store bytes under a name until they are evicted."""
        # Rows that expire would be deleted by a clock that is ahead for a moment.
        if await self._use(lambda cache: cache.set(self._below + name, value, tag=time.time())):
            self._told.clear()

    async def delete(self, name: str) -> None:
        """Remove a name."""
        await self._use(lambda cache: cache.delete(self._below + name))

    async def names(self) -> list[str]:
        """Return the names of all values; none if they can't be read."""
        return await self._use(lambda cache: _names(cache, self._below)) or []

    async def extent(self) -> Extent | None:
        """Return the size of the cache, or None if it can't be determined."""
        return await self._use(lambda cache: Extent(len(cache), cache.volume()))

    async def clear(self) -> int | None:
        """Remove everything; return the number of values, or None on failure."""
        return await self._use(lambda cache: int(cache.clear(retry=True)))

    async def aclose(self) -> None:
        """Close the cache's file."""
        if self._cache is not None:
            await self._use(lambda cache: cache.close())
            self._cache = None

    async def _use(self, use: Callable[[Any], T]) -> T | None:
        async with self._one_at_a_time:
            return await self._blocking(partial(self._guarded, use))

    def _guarded(self, use: Callable[[Any], T]) -> T | None:
        try:
            return self._used(use)
        except RowRefused as error:
            problem = f"holds {error}"
        except (OSError, diskcache.Timeout) as error:
            self._report_once(f"the cache is bypassed: {_reason(error)}")
            return None
        except Exception as error:  # a foreign file can make the libraries raise anything
            if getattr(error, "sqlite_errorcode", None) in _PASSING:
                self._report_once(f"the cache is bypassed: {error}")
                return None
            problem = f"can't be used ({_reason(error)})"
        self._rebuild(problem)
        return None

    def _report_once(self, problem: str) -> None:
        """Report a problem once until a value has been stored: a disk may stay full."""
        if problem not in self._told:
            self._told.add(problem)
            self._on_problem(problem)

    def _used(self, use: Callable[[Any], T]) -> T:
        if self._cache is None:
            self._cache = self._open()
        return use(self._cache)

    def _rebuild(self, problem: str) -> None:
        self._report_once(f"the cache {problem}; it is discarded and rebuilt")
        try:
            if self._cache is not None:
                self._cache.close()
        except sqlite3.Error:
            self._on_problem("the broken cache couldn't be closed")
        self._cache = None
        self._discard()

    def _open(self) -> Any:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._make_private():
            self._on_problem("other users could write to the cache's folder; the cache is discarded")
            self._discard()
        try:
            for path in self._folder.glob("cache.db*"):
                check_own(path)
        except NotOwn as error:
            self._on_problem(f"the cache can't be used ({error.strerror}); it is discarded")
            self._discard()
        return OneConnection(
            str(self._folder),
            timeout=5,
            disk=BytesDisk,
            size_limit=self._size_limit,
            disk_min_file_size=2**40,  # never a file: a row must not be able to name one
            sqlite_mmap_size=0,
            eviction_policy="least-recently-stored",  # reading costs no write
        )

    def _make_private(self) -> bool:
        """Make the folder private; return whether others could write to it. Raises OSError."""
        folder = open_own_folder(self._folder)
        try:
            mode = os.fstat(folder).st_mode
            os.fchmod(folder, 0o700)
            return bool(mode & 0o022)
        finally:
            os.close(folder)

    def _discard(self) -> None:
        for path in self._folder.glob("cache.db*"):
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            except OSError as error:
                self._on_problem(f"the broken cache can't be removed: {error.strerror}")


def _names(cache: Any, below: str) -> list[str]:
    names = (name for name in cache if isinstance(name, str))
    return [name.removeprefix(below) for name in names if name.startswith(below)]


def _found(value: object, stored_at: object) -> Cached | None:
    if not isinstance(value, bytes):
        return None
    if not isinstance(stored_at, float):
        raise RowRefused("a time that isn't one")
    age = time.time() - stored_at
    return Cached(value, age if age >= 0 else None)


def _reason(error: Exception) -> str:
    """Return the system's or SQLite's message for an error; for any other error only its type."""
    if isinstance(error, sqlite3.Error):
        return str(error)
    return getattr(error, "strerror", None) or type(error).__name__
