"""Whether the names of an open journal still lead to its files, and how much room is left beside them.

Somebody may delete the file, or put another one in its place, while it is open. What is open is the last copy
then, and a restart would begin with whatever has the name now.
"""

from __future__ import annotations

import os
from pathlib import Path

from deliveryd.journal.files import log_of
from deliveryd.journal.lock import Lock, identity

_DESCRIPTORS = Path("/proc/self/fd")


class Presence:
    """The files of a journal that is open, by their names. Close it in the end."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self._lock = lock
        self._files = {file: found for file in (path, log_of(path)) if (found := identity(file)) is not None}
        self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._folder)

    def room(self) -> int:
        """How many bytes are free on the disk, wherever the folder is now."""
        disk = os.fstatvfs(self._folder)
        return disk.f_bavail * disk.f_frsize

    def misplaced(self) -> str | None:
        """What is wrong with the names, and what to do about it; None: nothing.

        A lock whose file was removed is taken once more: else another worker could begin.
        """
        for file, opened in self._files.items():
            if identity(file) != opened:
                return (
                    f"{file} was removed or replaced while it was in use. Don't stop this worker before you"
                    f" have copied the last copy, which it has open: {self._copies()}"
                )
        if not self._lock.renew():
            return "the journal's lock was removed, and another process has it now"
        return None

    def _copies(self) -> str:
        """Where the open files can be copied from."""
        numbers = {_opened_as(number): number.name for number in _DESCRIPTORS.iterdir()}
        mine = [numbers[opened] for opened in self._files.values() if opened in numbers]
        return " and its log ".join(f"/proc/{os.getpid()}/fd/{number}" for number in mine)


def _opened_as(number: Path) -> tuple[int, int] | None:
    """Which file is open under a number, though it may have no name any more."""
    try:
        file = number.stat()
    except OSError:
        return None
    return file.st_dev, file.st_ino
