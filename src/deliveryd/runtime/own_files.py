"""Opens only files that this user created: follows no links, and refuses files of other users.

Whoever can write to a folder could place a symbolic or hard link there, and make this process truncate,
change or trust its target.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from deliveryd.runtime.rights import user_name

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
