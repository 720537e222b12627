"""The journal's locks: one for whoever works on it, and another one that only a worker has.

A command has the first one for as long as an order takes, so a worker that starts waits for it. A second
worker is refused at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio

from deliveryd.errors import JournalError, JournalLocked, JournalUnusable
from deliveryd.journal.damage import unusable
from deliveryd.journal.files import LOCK, WORKER_LOCK, check_writable, make_folder
from deliveryd.runtime.own_files import NotOwn, open_own
from deliveryd.telemetry import Event, log

LOCK_PAUSE = 0.02
"""Seconds between two tries: a command that has many orders carried out frees the lock for moments only."""


@contextmanager
def only_worker(journal: Path) -> Iterator[None]:
    """Keep other workers away from a journal. Raises JournalLocked when there is one, JournalError."""
    try:
        make_folder(journal.parent)
    except OSError as error:
        raise unusable(f"{journal} can't be used as a journal: {error.strerror}", error) from error
    check_writable(journal)
    lock = Lock(journal.with_name(journal.name + WORKER_LOCK))
    lock.take()
    try:
        yield
    finally:
        lock.release()


@asynccontextmanager
async def held(lock: Lock, patience: float) -> AsyncIterator[Lock]:
    """Hold a lock, after waiting for it so many seconds at most.

    Raises JournalLocked when another process still has it then, JournalError.
    """
    deadline = anyio.current_time() + patience
    is_awaited = False
    while True:
        try:
            lock.take()
            break
        except JournalLocked as error:
            if anyio.current_time() >= deadline:
                raise
            if not is_awaited:
                log(Event.JOURNAL_AWAITED, reason=str(error))
                is_awaited = True
        await anyio.sleep(LOCK_PAUSE)
    try:
        yield lock
    finally:
        lock.release()


class Lock:
    """A lock on a file, for as long as this process lives or until it is released."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def take(self) -> None:
        """Take it. Raises JournalLocked when another process has it, JournalError."""
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(file, 32).decode("ascii", "replace").strip()
            os.close(file)
            raise JournalLocked(
                f"the journal is in use by another deliveryd (process {owner or 'unknown'});"
                " give each instance its own journal.url"
            ) from None
        except OSError as error:
            os.close(file)
            raise JournalError(f"{self._path} can't be locked: {error.strerror}") from error
        with suppress(OSError):  # the number only helps whoever is kept out: a full disk is no matter
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def renew(self) -> bool:
        """Take it once more where its file was removed or replaced; tell whether we have it."""
        if _identity_of(os.fstat(self._file)) == identity(self._path):
            return True
        before = self._file
        try:
            self.take()
        except JournalError:
            return False
        os.close(before)
        return True

    def release(self) -> None:
        """Give it back."""
        os.close(self._file)

    def _open(self) -> int:
        try:
            return open_own(self._path, os.O_CREAT | os.O_RDWR)
        except NotOwn as error:
            raise JournalUnusable(f"the journal can't be locked: {error.strerror}") from None
        except OSError as error:
            raise unusable(f"{self._path} can't be made: {error.strerror}", error) from error


def identity(path: Path) -> tuple[int, int] | None:
    """Which file has a name: its device and number; None when there is none. A link is a file of its own."""
    try:
        return _identity_of(path.lstat())
    except OSError:
        return None


def _identity_of(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def lock_of(journal: Path) -> Lock:
    """The lock of whoever works on a journal."""
    return Lock(journal.with_name(journal.name + LOCK))
