"""Opens files that only we can have put where they are: no link is followed, and nobody else's file is used.

Where others can write to a folder, they could put a link there, or a second name of one of our files, and
have us truncate, change or trust what it leads to.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from deliveryd.runtime.rights import user_name

_BESIDES = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # a planted pipe keeps nobody waiting


class NotOwn(OSError):
    """A file isn't one that we made; `strerror` names it, says why, and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EPERM, text)


def open_own(path: Path, flags: int) -> int:
    """Open a regular file of ours, or make it for us alone where `flags` say so. Raises NotOwn, OSError.

    It is looked at when it is open, and before anything is done with it.
    """
    try:
        file = os.open(path, flags | _BESIDES, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(path) from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise _no_file(path) from None
        raise
    return _judged(file, path, _judge)


def check_own(path: Path) -> None:
    """The same look at a file that a library is about to open by its name, if it is there.

    It isn't opened: closing a database's file would release the locks that this process has on it.
    Raises NotOwn, OSError.
    """
    try:
        file = path.lstat()
    except FileNotFoundError:
        return
    _judge(path, file)


def open_own_folder(path: Path) -> int:
    """Open a folder of ours. Raises NotOwn, OSError."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        if path.is_symlink():
            raise _link(path) from None
        raise
    return _judged(folder, path, _judge_owner)


def check_own_socket(path: Path) -> None:
    """Raise NotOwn where there is something else than a socket of ours; OSError where there is nothing."""
    there = path.lstat()
    if stat.S_ISLNK(there.st_mode):
        raise _link(path)
    if not stat.S_ISSOCK(there.st_mode):
        raise NotOwn(f"{path} is no socket: remove it")
    _judge_owner(path, there)


def _judged(file: int, path: Path, judge: Callable[[Path, os.stat_result], None]) -> int:
    """Return an open file that passes `judge`; close one that doesn't. Raises NotOwn."""
    try:
        judge(path, os.fstat(file))
    except NotOwn:
        os.close(file)
        raise
    return file


def _judge(path: Path, file: os.stat_result) -> None:
    if stat.S_ISLNK(file.st_mode):
        raise _link(path)
    if not stat.S_ISREG(file.st_mode):
        raise _no_file(path)
    _judge_owner(path, file)
    if file.st_nlink > 1:
        raise NotOwn(
            f"{path} has {file.st_nlink} names (hard links), and what is done under one is done to all:"
            " remove the other names"
        )


def _judge_owner(path: Path, file: os.stat_result) -> None:
    me = os.geteuid()
    if file.st_uid != me:
        owner = user_name(file.st_uid)
        raise NotOwn(
            f"{path} belongs to the user {owner}, and this process runs as {user_name(me)}:"
            f" work as {owner}, or run: chown {user_name(me)} {path}"
        )


def _link(path: Path) -> NotOwn:
    return NotOwn(f"{path} is a symbolic link, which isn't followed: remove it")


def _no_file(path: Path) -> NotOwn:
    return NotOwn(f"{path} is no regular file: remove it")
