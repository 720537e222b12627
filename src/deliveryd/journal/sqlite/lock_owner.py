"""Which process holds a journal's lock, read from /proc: taking the lock could delay a starting worker."""

from __future__ import annotations

from pathlib import Path

from deliveryd.journal.sqlite.files import LOCK

LOCKS = Path("/proc/locks")


def lock_owner(journal: Path) -> int | None:
    """Return the id of the process that holds a journal's lock.

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
