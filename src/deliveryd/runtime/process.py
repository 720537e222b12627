"""What this process sets for itself: its limit on open files, and that its memory stays out of files."""

from __future__ import annotations

import errno
import os
import resource
import sys
from contextlib import suppress

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})


class NoThread(OSError):
    """This process, or its system, can begin no more threads (`TasksMax=`, `ulimit -u`)."""

    def __init__(self, code: int = errno.EAGAIN, text: str = "no more threads can be begun") -> None:
        super().__init__(code, text)


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard one: nothing here waits with select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def file_limit() -> int:
    """Return how many files a worker may open here once it has raised the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def is_out_of_files(error: BaseException | None) -> bool:
    """Whether this process, or the system, can open no more files or begin no thread, by the causes."""
    while error is not None:
        if isinstance(error, NoThread):
            return True
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            return True
        error = error.__cause__ or error.__context__
    return False


_KEY_LOG = "SSLKEYLOGFILE"
_PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """Disable core dumps, access to the memory by other processes of this user, and logging of TLS keys.

    SSLKEYLOGFILE is removed from the environment, since `ssl.create_default_context` and database drivers
    obey it. A resource limit doesn't stop core dumps that the kernel pipes to a handler (systemd-coredump),
    so the process is also marked as not dumpable.
    """
    os.environ.pop(_KEY_LOG, None)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ImportError, AttributeError, MemoryError):  # not Linux, or Python without ctypes
        import ctypes  # noqa: PLC0415  # optional: without it only the limit applies

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
