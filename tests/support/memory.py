"""Where the tests keep files that needn't outlive the machine: in memory, where a flush costs nothing."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108  # folders of random names are made in it
DISK = Path("/tmp")  # noqa: S108  # the same
ROOM = 4 << 30
"""Bytes that must be free: containers often have 64 MB."""


@cache
def folder_of_files() -> Path:
    """Return the folder in memory; where there is none with room for files and programs, that on the disk.

    Both have short names: sockets are made below.
    """
    try:
        there = os.statvfs(MEMORY)
    except OSError:
        return DISK
    has_room = there.f_bavail * there.f_frsize >= ROOM and not there.f_flag & os.ST_NOEXEC
    return MEMORY if has_room and os.access(MEMORY, os.W_OK) else DISK
