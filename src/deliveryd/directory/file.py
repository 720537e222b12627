"""A customer directory in a file, which may be replaced while it is in use."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field

from deliveryd.directory.base import Answered
from deliveryd.directory.customer_index import CustomerIndex, Unusable, read_index
from deliveryd.errors import ConfigError
from deliveryd.model import Customer
from deliveryd.options.units import FilePath


class FileOptions(BaseModel):
    """What the source "file" needs."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    path: FilePath = Field(description="JSON Lines or CSV; read again when it changes")


class _Stamp(NamedTuple):
    """What tells one state of a file from another; new rights or a time set back show in `changed`."""

    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class _Reading(NamedTuple):
    """A file that was read: its state before, whether it was still the same afterwards, and what it held."""

    stamp: _Stamp
    steady: bool
    contents: CustomerIndex | Unusable


class FileDirectory:
    """Looks customers up in a JSON Lines or CSV file (design 6).

    The look-up that finds the file changed waits until it has been read anew, so that its messages see what
    the operator has just put in; those that come meanwhile are answered from what was known before. A file
    that can't be used, or is gone, leaves the known customers as they are and is told to `on_problem`.
    """

    is_down = False

    def __init__(
        self,
        path: Path,
        index: CustomerIndex,
        stamp: _Stamp,
        on_problem: Callable[[str], None],
        check_interval: float,
    ) -> None:
        self._path = path
        self._index = index
        self._stamp = stamp
        self._on_problem = on_problem
        self._check_interval = check_interval
        self._next_check = float("-inf")
        self._checking = False
        self._unreachable: str | None = None

    @classmethod
    def load(cls, path: Path, on_problem: Callable[[str], None], check_interval: float = 1.0) -> Self:
        """Read the file; look for changes no more often than every `check_interval` seconds.

        Raises ConfigError, which names every mistake by line and none of the values (up to 20 of them).
        """
        try:
            reading = _read(path)
        except OSError as error:
            raise ConfigError([_unreachable(path, error)]) from None
        if isinstance(reading.contents, Unusable):
            raise ConfigError(reading.contents.problems)
        return cls(path, reading.contents, reading.stamp, on_problem, check_interval)

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        """All of `ids`, unless it is time to see whether the file has changed."""
        return {} if self._check_is_due() else self._find(ids)

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """Tell of all `ids` at once what the file says of them, as of the last time it could be read."""
        if self._check_is_due():
            self._next_check = anyio.current_time() + self._check_interval
            await self._check()
        await answered(self._find(ids))

    async def probe(self) -> str | None:
        """It was read when it was loaded."""
        return None

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _check_is_due(self) -> bool:
        return not self._checking and anyio.current_time() >= self._next_check

    def _find(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        return {id_: self._index.find(id_) for id_ in ids}

    async def _check(self) -> None:
        self._checking = True
        try:
            reading = await anyio.to_thread.run_sync(
                _read_if_new, self._path, self._stamp, abandon_on_cancel=True
            )
        except OSError as error:
            self._tell_unreachable(_unreachable(self._path, error))
        else:
            self._unreachable = None
            if reading is not None:
                self._settle(reading)
        finally:
            self._checking = False

    def _settle(self, reading: _Reading) -> None:
        if not reading.steady:  # somebody is writing: the next check finds it changed again
            return
        self._stamp = reading.stamp
        if isinstance(reading.contents, Unusable):
            self._on_problem("; ".join(reading.contents.problems))
        else:
            self._index = reading.contents

    def _tell_unreachable(self, problem: str) -> None:
        if problem != self._unreachable:
            self._unreachable = problem
            self._on_problem(problem)


def _read_if_new(path: Path, known: _Stamp) -> _Reading | None:
    return None if _Stamp.of(path.stat()) == known else _read(path)


def _read(path: Path) -> _Reading:
    with path.open("rb") as file:
        before = _Stamp.of(os.fstat(file.fileno()))
        data = file.read()
        after = _Stamp.of(os.fstat(file.fileno()))
    return _Reading(before, before == after, read_index(path, data))


def _unreachable(path: Path, error: OSError) -> str:
    return f"{path}: {error.strerror or type(error).__name__}"
