"""Wraps every boundary of the worker in this process, counts how often each is passed, and dies at one."""

from __future__ import annotations

import inspect
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

from crashes.boundaries import asked_by, boundaries, commit_name
from deliveryd.journal.sqlite import connection as file_connection
from deliveryd.journal.sqlite.journal import SqliteJournal


class Failpoint(NamedTuple):
    """The passing of a boundary at which the worker dies: the first one is 1."""

    name: str
    passing: int


class Named(NamedTuple):
    """What the journal shall do, under the name of the journal's method that asked for it."""

    name: str
    work: Callable[[sqlite3.Connection], Any]

    def __call__(self, db: sqlite3.Connection) -> Any:
        """Do it."""
        return self.work(db)


class Watch:
    """Counts passings. With a failpoint the process ends there by SIGKILL, in the middle of its work."""

    def __init__(self, failpoint: Failpoint | None) -> None:
        self._failpoint = failpoint
        self.counts: Counter[str] = Counter()

    def passes(self, name: str) -> None:
        """The worker passes this boundary."""
        self.counts[name] += 1
        if self._failpoint is not None and self._failpoint == (name, self.counts[name]):
            os.kill(os.getpid(), signal.SIGKILL)


def install(watch: Watch) -> None:
    """Wrap all boundaries, for as long as the process lives."""
    for boundary in boundaries():
        step = inspect.getattr_static(boundary.owner, boundary.step)
        if isinstance(step, staticmethod):
            wrapped: Any = staticmethod(_wrapped(step.__func__, boundary.name, watch))
        else:
            wrapped = _wrapped(step, boundary.name, watch)
        setattr(boundary.owner, boundary.step, wrapped)
    _watch_commits(watch)


def _wrapped(step: Callable[..., Any], name: str, watch: Watch) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(step):

        @wraps(step)
        async def passed_async(*args: Any, **kwargs: Any) -> Any:
            watch.passes(f"{name}/before")
            try:
                return await step(*args, **kwargs)
            finally:
                watch.passes(f"{name}/after")

        return passed_async

    @wraps(step)
    def passed(*args: Any, **kwargs: Any) -> Any:
        watch.passes(f"{name}/before")
        try:
            return step(*args, **kwargs)
        finally:
            watch.passes(f"{name}/after")

    return passed


def _watch_commits(watch: Watch) -> None:
    """Pass a boundary before and after the COMMIT statement itself, for each operation that it makes durable.

    What follows the statement is still in the thread that writes: nobody who waits has an answer yet.
    """
    operations: list[str] = []

    class WatchedConnection(file_connection.FileConnection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql != "COMMIT" or not operations:
                return super().execute(sql, *parameters)
            for operation in operations:
                watch.passes(f"{commit_name(operation)}/before")
            cursor = super().execute(sql, *parameters)
            for operation in operations:
                watch.passes(f"{commit_name(operation)}/after")
            return cursor

    journals: Any = SqliteJournal
    attempt, transact = journals._try, journals._transact

    def named(journal: SqliteJournal, operation: Any, then: Any = None) -> Any:
        if isinstance(operation, Named):
            return attempt(journal, operation, then)
        return attempt(journal, Named(asked_by(), operation), then)

    def watched(journal: SqliteJournal, batch: Sequence[Any]) -> None:
        operations[:] = sorted({request.operation.name for request in batch})
        try:
            transact(journal, batch)
        finally:
            operations.clear()

    journals._try = named
    journals._transact = watched
    file_connection.FileConnection = WatchedConnection  # type: ignore[misc]
