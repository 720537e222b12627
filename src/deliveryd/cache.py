"""A disk cache of texts that survives restarts, and is never worth more than what it saves.

diskcache would unpickle what a planted row tells it to (CVE-2025-69872), and would read files that a row names:
the Disk below knows bytes in the row itself and nothing else. A cache that fails is bypassed and rebuilt.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
import diskcache
from diskcache.core import MODE_RAW

T = TypeVar("T")


class RowRefused(Exception):
    """A row of the cache holds something that we never wrote."""


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache ships no types
    """Stores text keys and bytes values in the database's rows, and refuses to read anything else."""

    def put(self, key: object) -> tuple[object, bool]:
        """The key's form in the database."""
        if not isinstance(key, str):
            raise TypeError("keys are texts")
        return key, True

    def get(self, key: object, raw: bool) -> object:  # noqa: FBT001 - diskcache's signature
        """The key of a row."""
        if not raw or not isinstance(key, str):
            raise RowRefused("a key that isn't a text")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, object]:  # noqa: ARG002, FBT001
        """The value's form in the database: size, mode, no file, the bytes."""
        if not isinstance(value, bytes):
            raise TypeError("values are bytes")
        return len(value), MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> bytes:  # noqa: FBT001
        """The value of a row. Raises RowRefused for a pickle, a file, or anything else that isn't ours."""
        if mode != MODE_RAW or filename is not None or read or not isinstance(value, bytes):
            raise RowRefused("a value that isn't bytes in its row")
        return value


class DiskCache:
    """Bytes by name, in a folder that only we may read.

    `on_problem` hears, in a sentence, of everything that went wrong; none of it is raised.
    """

    def __init__(self, folder: Path, size_limit: int, on_problem: Callable[[str], None]) -> None:
        self._folder = folder
        self._size_limit = size_limit
        self._on_problem = on_problem
        self._cache: Any = None

    async def get(self, name: str) -> bytes | None:
        """What is stored under a name, or None."""
        value = await anyio.to_thread.run_sync(self._guarded, lambda cache: cache.get(name))
        return value if isinstance(value, bytes) else None

    async def set(self, name: str, value: bytes, ttl: float | None) -> None:
        """Store bytes under a name, for `ttl` seconds or until they are pushed out."""
        await anyio.to_thread.run_sync(self._guarded, lambda cache: cache.set(name, value, expire=ttl))

    async def delete(self, name: str) -> None:
        """Forget a name."""
        await anyio.to_thread.run_sync(self._guarded, lambda cache: cache.delete(name))

    async def aclose(self) -> None:
        """Close the cache's files."""
        if self._cache is not None:
            await anyio.to_thread.run_sync(self._cache.close)

    def _guarded(self, use: Callable[[Any], T]) -> T | None:
        try:
            if self._cache is None:
                self._cache = self._open()
            return use(self._cache)
        except RowRefused as error:
            self._on_problem(f"the cache holds {error}; it is thrown away and filled anew")
            self._rebuild()
        except sqlite3.DatabaseError as error:
            self._on_problem(f"the cache can't be used ({error}); it is thrown away and filled anew")
            self._rebuild()
        except (OSError, diskcache.Timeout) as error:
            self._on_problem(f"the cache is bypassed: {getattr(error, 'strerror', None) or type(error).__name__}")
        return None

    def _open(self) -> Any:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        return diskcache.Cache(
            str(self._folder),
            timeout=5,
            disk=BytesDisk,
            size_limit=self._size_limit,
            disk_min_file_size=2**40,  # never a file: a row must not be able to name one
            sqlite_mmap_size=0,  # a page mapped from a failing disk is a SIGBUS, not an error
            eviction_policy="least-recently-stored",  # reading costs no write
        )

    def _rebuild(self) -> None:
        try:
            if self._cache is not None:
                self._cache.close()
        except sqlite3.Error:
            self._on_problem("the broken cache couldn't be closed")
        self._cache = None
        for path in self._folder.glob("cache.db*"):
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            except OSError as error:
                self._on_problem(f"the broken cache can't be removed: {error.strerror}")
