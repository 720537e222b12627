"""Another user than root, for what root's rights would hide."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from support.world import World

NOBODY = 65534


@contextmanager
def as_nobody(world: World) -> Iterator[None]:
    """Where root runs the tests, do something as nobody, to whom the world's files belong from now on.

    The folders above it are opened meanwhile. What has to be imported must have been before.
    """
    if os.geteuid() != 0:
        yield
        return
    closed = {folder: folder.stat().st_mode for folder in world.folder.parents if "pytest" in str(folder)}
    for path in (world.folder, *world.folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    for folder in closed:
        folder.chmod(0o755)
    os.setresuid(NOBODY, NOBODY, 0)  # access(2) asks for the real user
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        for folder, mode in closed.items():
            folder.chmod(mode)
