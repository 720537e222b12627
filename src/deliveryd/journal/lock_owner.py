"""Who works on a journal now, found out without taking its lock: that could keep a starting worker away."""

from __future__ import annotations

from pathlib import Path

from deliveryd.journal.files import LOCK

LOCKS = Path("/proc/locks")


def holder_of(journal: Path) -> int | None:
    """The process that works on the journal; None when there is none, or none that is visible from here.

    A process in another container isn't visible.
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
