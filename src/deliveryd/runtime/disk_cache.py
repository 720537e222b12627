"""A disk cache of texts that survives restarts, and is never worth more than what it saves.

diskcache would unpickle what a planted row tells it to (CVE-2025-69872), and would read and remove files
that a row names: the Disk below knows bytes in the row itself and nothing else. A cache that fails is
bypassed and rebuilt.
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

from deliveryd.runtime.own_files import NotOwn, check_own, open_own_folder
from deliveryd.runtime.threads import Blocking, in_thread

T = TypeVar("T")

LARGEST_VALUE = 8 << 20
"""Bytes of a row at most: a planted one must not fill the memory."""

_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}
"""Errors that say nothing against what the file holds."""


class RowRefused(Exception):
    """A row of the cache holds something that we never wrote."""


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache ships no types
    """Stores text keys and bytes values in the database's rows, and refuses to read anything else."""

    def put(self, key: object) -> tuple[object, bool]:
        """The key's form in the database."""
        if not isinstance(key, str):
            raise TypeError("keys are texts")
        return key, True

    def get(self, key: object, raw: bool) -> object:
        """The key of a row."""
        if not raw or not isinstance(key, str):
            raise RowRefused("a key that isn't a text")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, object]:  # noqa: ARG002
        """The value's form in the database: size, mode, no file, the bytes."""
        if not isinstance(value, bytes):
            raise TypeError("values are bytes")
        return len(value), MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> bytes:
        """The value of a row. Raises RowRefused for a pickle, a file, or anything else that isn't ours."""
        if mode != MODE_RAW or filename is not None or read or not isinstance(value, bytes):
            raise RowRefused("a value that isn't bytes in its row")
        return value

    def remove(self, file_path: object) -> None:
        """Remove nothing: no row of ours has a file, so that only a planted one can name one."""


class OneConnection(diskcache.Cache):  # type: ignore[misc]  # diskcache ships no types
    """A cache whose threads, of which one at a time uses it, share one connection that `close` really closes.

    diskcache gives each thread its own and closes only that of the thread that asks for it; the others would
    keep a broken file open and locked.
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
            )  # a mapped page of a failing disk is a SIGBUS, no error
        return self._shared

    def close(self) -> None:
        """Close the connection; the next use opens another one."""
        connection, self._shared = self._shared, None
        if connection is not None:
            connection.close()


class Cached(NamedTuple):
    """A stored value, and the seconds until it is too old (None: never)."""

    value: bytes
    seconds_left: float | None


class Extent(NamedTuple):
    """How much a cache holds: entries, and bytes on the disk."""

    entries: int
    size: int


class DiskCache:
    """Bytes by name, in a folder that only we may read.

    `on_problem` hears, in a sentence, of everything that went wrong; none of it is raised.
    """

    def __init__(
        self,
        folder: Path,
        size_limit: int,
        on_problem: Callable[[str], None],
        blocking: Blocking = in_thread,
    ) -> None:
        self._folder = folder
        self._size_limit = size_limit
        self._on_problem = on_problem
        self._cache: Any = None
        self._blocking = blocking
        self._one_at_a_time = anyio.Lock()  # nobody uses what another one is just rebuilding
        self._told: set[str] = set()

    @property
    def folder(self) -> Path:
        """Where it is on the disk."""
        return self._folder

    async def get(self, name: str) -> Cached | None:
        """What is stored under a name, or None."""
        return await self._use(lambda cache: _found(*cache.get(name, expire_time=True)))

    async def set(self, name: str, value: bytes, ttl: float | None) -> None:
        """Store bytes under a name, for `ttl` seconds or until they are pushed out."""
        if await self._use(lambda cache: cache.set(name, value, expire=ttl)):
            self._told.clear()

    async def delete(self, name: str) -> None:
        """Forget a name."""
        await self._use(lambda cache: cache.delete(name))

    async def extent(self) -> Extent | None:
        """How much is stored, or None when that can't be told."""
        return await self._use(lambda cache: Extent(len(cache), cache.volume()))

    async def clear(self) -> int | None:
        """Forget everything, and tell how many values that were; None when it can't be done."""
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
            self._tell_once(f"the cache is bypassed: {_reason(error)}")
            return None
        except Exception as error:  # whatever a foreign file makes the libraries do
            if getattr(error, "sqlite_errorcode", None) in _PASSING:
                self._tell_once(f"the cache is bypassed: {error}")
                return None
            problem = f"can't be used ({_reason(error)})"
        self._rebuild(problem)
        return None

    def _tell_once(self, problem: str) -> None:
        """Say what went wrong, and not again before something could be stored: a disk may stay full."""
        if problem not in self._told:
            self._told.add(problem)
            self._on_problem(problem)

    def _used(self, use: Callable[[Any], T]) -> T:
        if self._cache is None:
            self._cache = self._open()
        return use(self._cache)

    def _rebuild(self, problem: str) -> None:
        self._tell_once(f"the cache {problem}; it is thrown away and filled anew")
        try:
            if self._cache is not None:
                self._cache.close()
        except sqlite3.Error:
            self._on_problem("the broken cache couldn't be closed")
        self._cache = None
        self._throw_away()

    def _open(self) -> Any:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._close_to_others():
            self._on_problem("others could write to the cache's folder; the cache is thrown away")
            self._throw_away()
        try:
            for path in self._folder.glob("cache.db*"):
                check_own(path)
        except NotOwn as error:
            self._on_problem(f"the cache can't be used ({error.strerror}); it is thrown away")
            self._throw_away()
        return OneConnection(
            str(self._folder),
            timeout=5,
            disk=BytesDisk,
            size_limit=self._size_limit,
            disk_min_file_size=2**40,  # never a file: a row must not be able to name one
            sqlite_mmap_size=0,
            eviction_policy="least-recently-stored",  # reading costs no write
        )

    def _close_to_others(self) -> bool:
        """Take the folder away from others; tell whether they could write to it. Raises OSError."""
        folder = open_own_folder(self._folder)
        try:
            mode = os.fstat(folder).st_mode
            os.fchmod(folder, 0o700)
            return bool(mode & 0o022)
        finally:
            os.close(folder)

    def _throw_away(self) -> None:
        for path in self._folder.glob("cache.db*"):
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            except OSError as error:
                self._on_problem(f"the broken cache can't be removed: {error.strerror}")


def _found(value: object, expires: object) -> Cached | None:
    if not isinstance(value, bytes):
        return None
    if expires is None:
        return Cached(value, None)
    if not isinstance(expires, float):
        raise RowRefused("a time that isn't one")
    return Cached(value, max(expires - time.time(), 0.0))


def _reason(error: Exception) -> str:
    """What may be told of an error: the words of the system or of SQLite, and of others only their kind."""
    if isinstance(error, sqlite3.Error):
        return str(error)
    return getattr(error, "strerror", None) or type(error).__name__
