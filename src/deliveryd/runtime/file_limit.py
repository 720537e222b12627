"""The limit on open files of this process: raised as far as it may be, and how it is shared out."""

from __future__ import annotations

import errno
import resource
import sys
from contextlib import suppress
from typing import NamedTuple

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


class OpenFiles(NamedTuple):
    """What a configuration may open at once: for attempts, for all else, and how much there may be."""

    attempts: int
    others: int
    limit: int

    @property
    def is_enough(self) -> bool:
        """Whether everything may be open at once."""
        return self.attempts + self.others <= self.limit

    def lowered(self, concurrency: int) -> int:
        """Return how many attempts of one provider fit. All give up the same part; half is for attempts."""
        room = max(self.limit - self.others, self.limit // 2)
        return concurrency if room >= self.attempts else max(concurrency * room // self.attempts, 1)

    def __str__(self) -> str:
        return f"{self.attempts + self.others} files may be open at once, and the limit is {self.limit}"
