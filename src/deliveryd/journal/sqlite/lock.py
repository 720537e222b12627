"""The journal's two locks: one for any process that writes to it, one for workers only.

A command that carries out an order without a worker takes the first lock for a moment, so a starting worker
waits for it. The second lock makes a second worker fail at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio

from deliveryd.errors import JournalError, JournalLocked, JournalUnusable
from deliveryd.journal.sqlite.damage import unusable
from deliveryd.journal.sqlite.files import LOCK, WORKER_LOCK, check_writable, make_folder
from deliveryd.runtime.rights import NotOwn, open_own
from deliveryd.telemetry.log_events import Event, log

LOCK_PAUSE = 0.02
"""Seconds between two attempts. Short: between two orders a command releases the lock only for a moment."""


@contextmanager
def exclusive_worker(journal: Path) -> Iterator[None]:
    """Hold the lock that only workers take. Raises JournalLocked if another worker holds it, JournalError."""
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


@contextmanager
def exclusive_journal(journal: Path) -> Iterator[None]:
    """Keep workers and commands from a journal's file. Raises JournalLocked, JournalError."""
    lock = lock_of(journal)
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_worker(journal))
            lock.take()
        except JournalLocked as error:
            said = str(error).partition(";")[0]  # goes on with what a second worker needs
            raise JournalLocked(f"{said}: stop the worker first") from None
        stack.callback(lock.release)
        yield


@asynccontextmanager
async def holding(lock: Lock, timeout: float) -> AsyncIterator[Lock]:
    """Hold a lock; wait for it for at most `timeout` seconds.

    Raises JournalLocked if another process still holds it then, JournalError.
    """
    deadline = anyio.current_time() + timeout
    is_logged = False
    while True:
        try:
            lock.take()
            break
        except JournalLocked as error:
            if anyio.current_time() >= deadline:
                raise
            if not is_logged:
                log(Event.JOURNAL_AWAITED, reason=str(error))
                is_logged = True
        await anyio.sleep(LOCK_PAUSE)
    try:
        yield lock
    finally:
        lock.release()


class Lock:
    """A lock on a file, held until it is released or the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def take(self) -> None:
        """Take the lock. Raises JournalLocked if another process holds it, JournalError."""
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
        with suppress(OSError):  # the process id is for error messages only: do without it on a full disk
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def renew(self) -> bool:
        """Take the lock again if its file was removed or replaced; return whether this process holds it."""
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
        """Release the lock."""
        os.close(self._file)

    def _open(self) -> int:
        try:
            return open_own(self._path, os.O_CREAT | os.O_RDWR)
        except NotOwn as error:
            raise JournalUnusable(f"the journal can't be locked: {error.strerror}") from None
        except OSError as error:
            raise unusable(f"{self._path} can't be created: {error.strerror}", error) from error


def identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a path, without following a symbolic link; None if it doesn't exist."""
    try:
        return _identity_of(path.lstat())
    except OSError:
        return None


def _identity_of(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def lock_of(journal: Path) -> Lock:
    """Return the lock for any process that writes to a journal."""
    return Lock(journal.with_name(journal.name + LOCK))
