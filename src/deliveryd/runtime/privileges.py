"""What root's commands do with their power: they give it up before they open a file of the journal's owner.

Whoever owns a folder can put links there. A command of root's that works as that owner can do nothing through
them that the owner couldn't do without it.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import NamedTuple

from deliveryd.errors import DeliverydError
from deliveryd.runtime.rights import user_name

_PR_SET_KEEPCAPS = 8
_CAPABILITIES_VERSION = 0x20080522
_READ_AND_SEARCH = 1 << 2  # CAP_DAC_READ_SEARCH
_MOST_LINKS = 40


class _Identity(NamedTuple):
    user: int
    group: int
    groups: list[int]


def work_as_owner(named: Path) -> None:
    """As root, become the owner of the folder that a journal lies in, for the rest of this process.

    `named` is the journal as it is configured. Right after this the process may still enter folders and read
    files as root does: the folder may lie below one that only root can enter (DynamicUser=), and secrets may
    be root's. It may change nothing that isn't its new user's. Anybody else than root stays who they are.
    Raises DeliverydError where a link on the way was made by somebody else than root or the owner.
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
            f"{link} is a symbolic link that leads to {folder}, and wasn't made by {makers}:"
            " remove it, or name the journal itself in journal.url"
        )
    if owner.st_uid == 0:
        return
    try:
        _become(_identity_of(owner))
    except OSError as error:
        raise DeliverydError(
            f"{folder} belongs to the user {user}, and this process may not work as {user}"
            f" ({error.strerror}): run the command as {user}"
        ) from None


def _nearest(folder: Path) -> Path:
    """The folder itself, or the one in which it will be made."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _foreign_link(path: Path, owner: int) -> Path | None:
    """The first link on a path that neither root nor an owner has made."""
    here = Path("/")
    rest = list(reversed(path.absolute().parts[1:]))
    links = 0
    while rest and links <= _MOST_LINKS:
        name = rest.pop()
        step = here.parent if name == ".." else here / name
        try:
            there = step.lstat()
        except OSError:
            return None
        if not stat.S_ISLNK(there.st_mode):
            here = step
            continue
        if there.st_uid not in (0, owner):
            return step
        links += 1
        target = step.readlink()
        here = Path("/") if target.is_absolute() else here
        rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return None


def _identity_of(folder: os.stat_result) -> _Identity:
    try:
        entry = pwd.getpwuid(folder.st_uid)
    except KeyError:  # of a container, or of a unit that isn't running now
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
