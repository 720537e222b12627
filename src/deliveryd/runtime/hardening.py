"""Keeps secrets, variables of messages and TLS keys in memory out of files."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

KEY_LOG = "SSLKEYLOGFILE"
_PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """Disable core dumps, access to the memory by other processes of this user, and logging of TLS keys.

    SSLKEYLOGFILE is removed from the environment, since `ssl.create_default_context` and database drivers
    obey it. A resource limit doesn't stop core dumps that the kernel pipes to a handler (systemd-coredump),
    so the process is also marked as not dumpable.
    """
    os.environ.pop(KEY_LOG, None)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ImportError, AttributeError, MemoryError):  # not Linux, or Python without ctypes
        import ctypes  # noqa: PLC0415  # optional: without it only the limit applies

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
