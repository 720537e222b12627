"""A customer directory in a file that may be replaced while in use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import anyio

from deliveryd.directory.base import Answered
from deliveryd.directory.customer_index import CustomerIndex, Unusable, read_index
from deliveryd.errors import ConfigError
from deliveryd.model import Customer
from deliveryd.runtime.rights import tampering
from deliveryd.runtime.threads import in_thread


class _Stamp(NamedTuple):
    """Identifies a version of a file; changes of rights or a time set back show in `changed`."""

    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class _Reading(NamedTuple):
    """A file that was read: its version before, whether it was unchanged afterwards, and its contents."""

    stamp: _Stamp
    steady: bool
    contents: CustomerIndex | Unusable


class FileDirectory:
    """Looks customers up in a JSON Lines or CSV file (design 6).

    The look-up that detects a change waits until the file has been read again, so that its messages see the
    change; concurrent look-ups use the previous contents. A changed file counts if it is the same at two
    looks, `check_interval` apart: it may be being written.

    If the file is invalid or missing, or has lost more than half of its customers, the previous contents stay
    and the problem is passed to `on_problem`; so is a loss of more than a fifth.
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
        """Read the file as it is; check for changes at most every `check_interval` seconds.

        Raises ConfigError, which lists up to 20 mistakes by line, without values.
        """
        try:
            reading = _read(path)
        except OSError as error:
            raise ConfigError([_unreachable(path, error)]) from None
        if isinstance(reading.contents, Unusable):
            raise ConfigError(reading.contents.problems)
        return cls(path, reading.contents, reading.stamp, on_problem, check_interval)

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        """Answer all of `ids`, unless a check for changes is due."""
        return {} if self._check_is_due() else self._find(ids)

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """Answer all `ids` at once from the latest valid contents."""
        if self._check_is_due():
            self._next_check = anyio.current_time() + self._check_interval
            await self._check()
        await answered(self._find(ids))

    async def read_to_accept(self) -> Callable[[], int]:
        """Read the file; return what puts it to use, whoever is gone, and returns the number of customers.

        Raises ConfigError if the file is invalid.
        """
        try:
            reading = await in_thread(partial(_read, self._path), abandon_on_cancel=True)
        except OSError as error:
            raise ConfigError([_unreachable(self._path, error)]) from None
        index = reading.contents
        if isinstance(index, Unusable):
            raise ConfigError(index.problems)

        def accept() -> int:
            self._stamp, self._index = reading.stamp, index
            return len(index)

        return accept

    async def probe(self) -> str | None:
        """Return None: loading has read the file."""
        return None

    async def aclose(self) -> None:
        """Do nothing: no resource is open."""

    def _check_is_due(self) -> bool:
        return not self._checking and anyio.current_time() >= self._next_check

    def _find(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        return {id_: self._index.find(id_) for id_ in ids}

    async def _check(self) -> None:
        self._checking = True
        try:
            read = partial(_read_if_new, self._path, self._stamp, self._check_interval)
            reading = await in_thread(read, abandon_on_cancel=True)
        except OSError as error:
            self._report_unreachable(_unreachable(self._path, error))
        else:
            self._unreachable = None
            if reading is not None:
                self._settle(reading)
        finally:
            self._checking = False

    def _settle(self, reading: _Reading) -> None:
        if not reading.steady:  # being written: the next check finds another change
            return
        self._stamp = reading.stamp
        if isinstance(reading.contents, Unusable):
            self._on_problem("; ".join(reading.contents.problems))
            return
        before, now = len(self._index), len(reading.contents)
        told = f"{self._path}: {now:,} customers instead of {before:,}"
        if now < before / 2:
            self._on_problem(f"{told}: the former ones stay in use; run deliveryd reload --accept")
            return
        if now < before * 4 / 5:
            self._on_problem(told)
        self._index = reading.contents

    def _report_unreachable(self, problem: str) -> None:
        if problem != self._unreachable:
            self._unreachable = problem
            self._on_problem(problem)


def _read_if_new(path: Path, known: _Stamp, pause: float) -> _Reading | None:
    """Return the file's contents, steady if they are the same `pause` seconds after the first look."""
    first_look = _Stamp.of(path.stat())
    if first_look == known:
        return None
    time.sleep(pause)
    reading = _read(path)
    return reading._replace(steady=reading.steady and reading.stamp == first_look)


def _read(path: Path) -> _Reading:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        before = _Stamp.of(status)
        if problems := tampering(path, status, os.geteuid()):
            return _Reading(before, steady=True, contents=Unusable(problems))
        data = file.read()
        after = _Stamp.of(os.fstat(file.fileno()))
    return _Reading(before, before == after, read_index(path, data))


def _unreachable(path: Path, error: OSError) -> str:
    return f"{path}: {error.strerror or type(error).__name__}"
