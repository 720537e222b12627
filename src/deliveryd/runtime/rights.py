"""Which other users can read or change a file, by its owner, group and mode."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import stat
from pathlib import Path

READ, WRITE = 0o4, 0o2
"""Rights as one digit of a file's mode."""


def may_others(status: os.stat_result, rights: int) -> bool:
    """Whether all users have one of these rights."""
    return bool(status.st_mode & rights)


def foreign_group(status: os.stat_result, rights: int) -> str | None:
    """Return the group that has one of these rights, unless it is root's or one of this process.

    For root, the file owner's groups don't count either, since root checks files for other users.
    """
    groups = {0, os.getegid(), *os.getgroups()}
    if os.geteuid() == 0:
        groups.add(_primary_group(status.st_uid))
    is_foreign = status.st_mode & rights << 3 and status.st_gid not in groups
    return group_name(status.st_gid) if is_foreign else None


def shared_group(status: os.stat_result, rights: int) -> str | None:
    """Return the group that has one of these rights, unless it is the owner's private group."""
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
    """Return the name of a group, or its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def user_name(uid: int) -> str:
    """Return the name of a user, or the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def at_this_machine(user: str) -> str:
    """Return a user's name for a record that several machines share."""
    return f"{user}@{socket.gethostname()}"


def exposure(path: Path, rights: int) -> str | None:
    """Return who else can read or change a readable file, as a phrase, or None.

    The check applies to the opened file. A file in a folder that others can't enter isn't exposed.
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


def tampering(path: Path, status: os.stat_result, user: int) -> str | None:
    """Return who else than root and a user can change an opened file or folder, and the remedy, or None."""
    if status.st_uid not in (0, user):
        owner, name = user_name(status.st_uid), user_name(user)
        remedy = f"run: chown root {path}" if user == 0 else f"run: chown root {path}, or chown {name} {path}"
        return f"belongs to {owner}, who may change it; {remedy}"
    if may_others(status, WRITE):
        return f"everybody may change it; run: chmod o-w {path}"
    group = foreign_group(status, WRITE)
    return None if group is None else f"the group {group} may change it; run: chmod g-w {path}"


def _verbs(rights: int) -> str:
    return " and ".join(word for right, word in ((READ, "read"), (WRITE, "change")) if rights & right)
