"""Describes exceptions without the messages of other libraries, which may hold data."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator

from deliveryd.errors import DeliverydError

LONGEST_CHAIN = 8
"""Causes of an exception that are named."""


def describe(error: BaseException) -> str:
    """Name an exception and its causes, without the messages of other libraries."""
    return " <- ".join(error_name(link) for link in error_causes(error))


def error_name(error: BaseException) -> str:
    """Name one exception; errors of our own with their message."""
    kind = type(error).__name__
    if isinstance(error, DeliverydError):
        return f"{kind}: {error}" if str(error) else kind
    if isinstance(error, OSError) and error.errno is not None:
        return f"{kind} {errno.errorcode.get(error.errno, '')}".rstrip()
    if isinstance(error, sqlite3.Error) and hasattr(error, "sqlite_errorname"):
        return f"{kind} {error.sqlite_errorname}"
    return kind


def error_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what caused it, the last cause last."""
    link: BaseException | None = error
    for _ in range(LONGEST_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
