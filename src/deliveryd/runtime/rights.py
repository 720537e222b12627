"""Who else than this process' user can read or change a file, by what the file system says of it."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

READ, WRITE = 0o4, 0o2
"""What others may do, as one digit of a file's mode."""


def may_others(status: os.stat_result, rights: int) -> bool:
    """Whether everybody may do one of these."""
    return bool(status.st_mode & rights)


def foreign_group(status: os.stat_result, rights: int) -> str | None:
    """The group that may do one of these, unless it is root's or one of this process.

    For root, the group of the file's owner isn't foreign either: root looks at files of those it works for.
    """
    groups = {0, os.getegid(), *os.getgroups()}
    if os.geteuid() == 0:
        groups.add(_primary_group(status.st_uid))
    is_foreign = status.st_mode & rights << 3 and status.st_gid not in groups
    return group_name(status.st_gid) if is_foreign else None


def shared_group(status: os.stat_result, rights: int) -> str | None:
    """The group that may do one of these, unless it is the owner's alone (as most systems make them)."""
    if not status.st_mode & rights << 3 or _is_private(status.st_gid, status.st_uid):
        return None
    return group_name(status.st_gid)


def _is_private(gid: int, uid: int) -> bool:
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


def _primary_group(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return 0


def group_name(gid: int) -> str:
    """The name of a group, or its number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def user_name(uid: int) -> str:
    """The name of a user, or their number where they have none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def exposure(path: Path, rights: int) -> str | None:
    """Who else may read or change a file that can be read, as a phrase; None: nobody.

    What is looked at is the file that was opened. One in a folder that others can't enter isn't exposed.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
        folders = [folder.stat() for folder in path.resolve().parents]
    except OSError:
        return None
    if may_others(status, rights) and all(folder.st_mode & stat.S_IXOTH for folder in folders):
        return f"other users may {_verbs(status.st_mode & rights)} {path}; run: chmod o-rwx {path}"
    group = foreign_group(status, rights)
    if group is not None:
        done = _verbs(status.st_mode >> 3 & rights)
        return f"the group {group} may {done} {path}; run: chmod g-rwx {path}"
    return None


def _verbs(rights: int) -> str:
    return " and ".join(word for right, word in ((READ, "read"), (WRITE, "change")) if rights & right)
