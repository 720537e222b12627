"""Drops root privileges before a command opens files of the journal's owner.

The owner of a folder can place links there. A command that runs as that owner can do nothing through them
that the owner couldn't do directly.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import NamedTuple

from deliveryd.errors import DeliverydError
from deliveryd.runtime.rights import steps_to, user_name

_PR_SET_KEEPCAPS = 8
_CAPABILITIES_VERSION = 0x20080522
_READ_AND_SEARCH = 1 << 2  # CAP_DAC_READ_SEARCH


class _Identity(NamedTuple):
    user: int
    group: int
    groups: list[int]


def work_as_owner(named: Path) -> None:
    """As root, become the owner of the journal's folder for the rest of this process; otherwise do nothing.

    `named` is the journal as configured. The process keeps root's right to enter folders and read files: the
    folder may be inside one that only root can enter (DynamicUser=), and secrets may belong to root. It can
    only change what belongs to its new user. Raises DeliverydError if a link on the path was created by
    someone other than root or the owner.
    """
    if os.geteuid() != 0:
        return
    folder = _nearest(Path(os.path.realpath(named)).parent)
    owner = folder.lstat()
    user = user_name(owner.st_uid)
    link = _foreign_link(named, owner.st_uid)
    if link is not None:
        makers = "root" if owner.st_uid == 0 else f"root or {user}"
        raise DeliverydError(
            f"{link} is a symbolic link to {folder} that wasn't created by {makers}:"
            " remove it, or name the journal itself in journal.url"
        )
    if owner.st_uid == 0:
        return
    try:
        _become(_identity_of(owner))
    except OSError as error:
        raise DeliverydError(
            f"{folder} belongs to the user {user}, and this process can't become {user}"
            f" ({error.strerror}): run the command as {user}"
        ) from None


def owner_of(named: Path) -> int | None:
    """Return the owner of the folder of a file; None while there is no such folder."""
    folder = Path(os.path.realpath(named)).parent
    return folder.lstat().st_uid if os.path.lexists(folder) else None


def _nearest(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _foreign_link(path: Path, owner: int) -> Path | None:
    """Return the first link on a path that was created by neither root nor an owner."""
    links = (step for step, there in steps_to(path)
             if stat.S_ISLNK(there.st_mode) and there.st_uid not in (0, owner))  # fmt: skip
    return next(links, None)


def _identity_of(folder: os.stat_result) -> _Identity:
    try:
        entry = pwd.getpwuid(folder.st_uid)
    except KeyError:  # a user of a container, or of a unit that isn't running
        return _Identity(folder.st_uid, folder.st_gid, [folder.st_gid])
    return _Identity(entry.pw_uid, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid))


def _become(identity: _Identity) -> None:
    import ctypes  # noqa: PLC0415  # only for root

    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same of the higher ones
    libc.capget(head, sets)
    kept = sets[1] & _READ_AND_SEARCH
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups(identity.groups)
    os.setresgid(identity.group, identity.group, identity.group)
    os.setresuid(identity.user, identity.user, identity.user)
    if libc.capset(head, (ctypes.c_uint32 * 6)(kept, kept)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
