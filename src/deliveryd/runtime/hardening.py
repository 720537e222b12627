"""Keeps what this process has in its memory out of files: secrets, variables of messages, keys of TLS."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

KEY_LOG = "SSLKEYLOGFILE"
_PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """Have a crash leave no core dump, other processes of this user not read the memory, TLS log no keys.

    The environment's key log is taken away for all of the process, since `ssl.create_default_context` and
    drivers of databases heed it by themselves. A limit alone doesn't keep a core from a handler that the
    kernel pipes it to (systemd-coredump): a process that isn't dumpable has none.
    """
    os.environ.pop(KEY_LOG, None)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ImportError, AttributeError, MemoryError):  # no Linux, or no ctypes in this Python
        import ctypes  # noqa: PLC0415  # where it is missing, the limit has to do

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
