"""Checks that the paths of an open journal still name its files, and measures the disk's free space.

If a file is deleted or replaced while it is open, the open descriptor is the only copy, and a restart would
use whatever the path names then.
"""

from __future__ import annotations

import os
from pathlib import Path

from deliveryd.journal.sqlite.files import wal_of
from deliveryd.journal.sqlite.lock import Lock, identity

_DESCRIPTORS = Path("/proc/self/fd")


class Presence:
    """The files of an open journal, by path. Call `close` when done."""

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
