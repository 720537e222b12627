"""The journal's two locks, one for any process that writes to it, one for workers only; and its open files.

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
from deliveryd.journal.sqlite.connection import unusable
from deliveryd.journal.sqlite.files import LOCK, WORKER_LOCK, check_writable, make_folder, wal_of
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


LOCKS = Path("/proc/locks")


def lock_owner(journal: Path) -> int | None:
    """Return the id of the process that holds a journal's lock: taking it could delay a starting worker.

    None: no process holds it, or one in another PID namespace (container), which isn't visible.
    """
    try:
        inode = journal.with_name(journal.name + LOCK).lstat().st_ino
        lines = LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        # 1: FLOCK  ADVISORY  WRITE 21919 fe:00:2148822 0 EOF
        words = line.split()
        if words[1:2] == ["FLOCK"] and words[3:4] == ["WRITE"] and words[5].endswith(f":{inode}"):
            return int(words[4])
    return None


_DESCRIPTORS = Path("/proc/self/fd")


class Presence:
    """The files of an open journal: whether their paths still name them, and the free space of their disk.

    If a file is deleted or replaced while it is open, the open descriptor is the only copy, and a restart
    would use whatever the path names then. Call `close` when done.
    """

    def __init__(self, path: Path, lock: Lock) -> None:
        self._lock = lock
        self._files = {file: found for file in (path, wal_of(path)) if (found := identity(file)) is not None}
        self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the folder."""
        os.close(self._folder)

    def room(self) -> int:
        """Return the free bytes on the disk, even if the folder was moved."""
        disk = os.fstatvfs(self._folder)
        return disk.f_bavail * disk.f_frsize

    def misplaced(self) -> str | None:
        """Return what is wrong with the paths and what to do about it; None if they are right.

        If the lock's file was removed, the lock is taken again: otherwise a second worker could start.
        """
        for file, opened in self._files.items():
            if identity(file) != opened:
                return (
                    f"{file} was removed or replaced while it was in use. Before you stop this worker, copy"
                    f" the files that it has open, which are the only copy: {self._copies()}"
                )
        if not self._lock.renew():
            return "the journal's lock file was removed, and another process holds the lock now"
        return None

    def _copies(self) -> str:
        """Return the paths under /proc from which the open files can be copied."""
        numbers = {_opened_as(number): number.name for number in _DESCRIPTORS.iterdir()}
        mine = [numbers[opened] for opened in self._files.values() if opened in numbers]
        return " and its log ".join(f"/proc/{os.getpid()}/fd/{number}" for number in mine)


def _opened_as(number: Path) -> tuple[int, int] | None:
    """Return the device and inode behind a descriptor, even if the file has no name any more."""
    try:
        file = number.stat()
    except OSError:
        return None
    return file.st_dev, file.st_ino
