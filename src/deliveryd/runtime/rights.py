"""Which other users can read or change a file, by its owner, group and mode; opens only our own files.

Whoever can write to a folder could place a symbolic or hard link there, and make this process truncate,
change or trust its target. So our own files are opened without following links.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

READ, WRITE = 0o4, 0o2
"""Rights as one digit of a file's mode."""

_MOST_LINKS = 40


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


def tampering(path: Path, status: os.stat_result, user: int | None) -> list[str]:
    """Return who else than root and a user can change an opened file, or what is on the way to it.

    None: the user isn't known, and may own any of it. `status` is that of the open file or folder. Each
    problem is `PATH: who; what to do`. Whoever may write to a folder on the way can put another file there.
    Access control lists need no check of their own: with one, the group bits of a mode are its mask, the most
    that it gives to any other user or group that it names.
    """
    way = [(step, there) for step, there in steps_to(path) if not os.path.samestat(there, status)]
    problems = [
        *(_owner_problem(step, there, user) or _folder_problem(step, there) for step, there in way),
        _owner_problem(path, status, user) or _writer_problem(path, status),
    ]
    return [problem for problem in problems if problem is not None]


def steps_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all folders and symbolic links on the way to a file, then the file itself, from the root on.

    It ends early at what doesn't exist or can't be entered, and after forty links.
    """
    here, rest, links = Path("/"), list(reversed(path.absolute().parts[1:])), 0
    yield here, here.lstat()
    while rest and links <= _MOST_LINKS:
        name = rest.pop()
        step = here.parent if name == ".." else here / name
        try:
            there = step.lstat()
            target = step.readlink() if stat.S_ISLNK(there.st_mode) else None
        except OSError:
            return
        yield step, there
        if target is None:
            here = step
            continue
        links += 1
        here = Path("/") if target.is_absolute() else here
        rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _owner_problem(path: Path, status: os.stat_result, user: int | None) -> str | None:
    if user is None or status.st_uid in (0, user):
        return None
    owner, name = user_name(status.st_uid), user_name(user)
    chown = "chown -h" if stat.S_ISLNK(status.st_mode) else "chown"
    remedy = f"run: {chown} root {path}" + ("" if user == 0 else f", or {chown} {name} {path}")
    return f"{path}: belongs to {owner}, who may change it; {remedy}"


def _writer_problem(path: Path, status: os.stat_result) -> str | None:
    if may_others(status, WRITE):
        return f"{path}: all users may change it; run: chmod o-w {path}"
    group = foreign_group(status, WRITE)
    return None if group is None else f"{path}: the group {group} may change it; run: chmod g-w {path}"


def _folder_problem(path: Path, status: os.stat_result) -> str | None:
    """Return who can put another file in the place of one in this folder; a link has only an owner.

    No other user can if the folder's sticky bit is set, or if it is a read-only mount of its own: a ConfigMap
    of Kubernetes is one, whose mode lets all users write.
    """
    if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
        return None
    problem = _writer_problem(path, status)
    is_fixed = problem and os.path.ismount(path) and os.statvfs(path).f_flag & os.ST_RDONLY
    return None if is_fixed else problem


def _verbs(rights: int) -> str:
    return " and ".join(word for right, word in ((READ, "read"), (WRITE, "change")) if rights & right)


_BESIDES = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # a planted pipe doesn't block


class NotOwn(OSError):
    """A file wasn't created by this user; `strerror` names it, the reason, and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EPERM, text)


def open_own(path: Path, flags: int) -> int:
    """Open a regular file of this user, or create a private one if `flags` say so. Raises NotOwn, OSError.

    The checks apply to the open file, before it is used.
    """
    try:
        file = os.open(path, flags | _BESIDES, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(path) from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise _no_file(path) from None
        raise
    return _checked(file, path, _check_file)


def check_own(path: Path) -> None:
    """Apply the same checks to a file that a library will open by name, if it exists.

    The file isn't opened: closing a database's file would release this process's locks on it.
    Raises NotOwn, OSError.
    """
    try:
        file = path.lstat()
    except FileNotFoundError:
        return
    _check_file(path, file)


def open_own_folder(path: Path) -> int:
    """Open a folder of this user. Raises NotOwn, OSError."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        if path.is_symlink():
            raise _link(path) from None
        raise
    return _checked(folder, path, _check_owner)


def check_own_socket(path: Path) -> None:
    """Raise NotOwn if the path isn't a socket of this user, and OSError if it doesn't exist."""
    there = path.lstat()
    if stat.S_ISLNK(there.st_mode):
        raise _link(path)
    if not stat.S_ISSOCK(there.st_mode):
        raise NotOwn(f"{path} isn't a socket: remove it")
    _check_owner(path, there)


def _checked(file: int, path: Path, check: Callable[[Path, os.stat_result], None]) -> int:
    """Return an open file that passes `check`; close one that doesn't. Raises NotOwn."""
    try:
        check(path, os.fstat(file))
    except NotOwn:
        os.close(file)
        raise
    return file


def _check_file(path: Path, file: os.stat_result) -> None:
    if stat.S_ISLNK(file.st_mode):
        raise _link(path)
    if not stat.S_ISREG(file.st_mode):
        raise _no_file(path)
    _check_owner(path, file)
    if file.st_nlink > 1:
        raise NotOwn(
            f"{path} has {file.st_nlink} names (hard links), so changes would affect all of them:"
            " remove the other names"
        )


def _check_owner(path: Path, file: os.stat_result) -> None:
    me = os.geteuid()
    if file.st_uid != me:
        owner = user_name(file.st_uid)
        raise NotOwn(
            f"{path} belongs to the user {owner}, but this process runs as {user_name(me)}:"
            f" run as {owner}, or run: chown {user_name(me)} {path}"
        )


def _link(path: Path) -> NotOwn:
    return NotOwn(f"{path} is a symbolic link, which is not followed: remove it")


def _no_file(path: Path) -> NotOwn:
    return NotOwn(f"{path} isn't a regular file: remove it")
