"""Wraps the boundaries of a worker with PostgreSQL, in its process, which ends, stops or waits at one."""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from crashes.boundaries import asked_by
from deliveryd.journal.base import MatchedReceipt
from deliveryd.journal.postgresql import commits, inbox, lease, logs, opening
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.sql.receipt_match import Matching
from fleet.boundaries import KEPT, STEPS, Beside, change_name, commit_name

KILL = "kill"
STOP = "stop"
HOLD = "hold"
"""What happens at a boundary: the process ends by SIGKILL, or stops by SIGSTOP, or this thread waits."""


class Watch:
    """Tells whoever listens at a socket which boundary was passed that he had asked for.

    Each line from there is JSON: `{"at": {NAME: HOW}}` replaces the orders, `{"go": true}` ends a wait. The
    process begins its work after the first line.
    """

    def __init__(self, path: Path) -> None:
        self._orders: dict[str, str] = {}
        self._go = threading.Event()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(path))
        lines = self._line.makefile("rb")
        self._obey(json.loads(next(lines)))
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()

    def _listen(self, lines: Iterator[bytes]) -> None:
        with suppress(OSError):
            for line in lines:
                self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        if "at" in order:
            self._orders = order["at"]
        if "go" in order:
            self._go.set()

    def passes(self, name: str) -> None:
        """The worker passes this boundary."""
        how = self._orders.pop(name, None)
        if how is None:
            return
        self._go.clear()
        with suppress(OSError):
            self._line.sendall(json.dumps({"passed": name, "pid": os.getpid()}).encode() + b"\n")
        if how == HOLD:
            self._go.wait()
        else:
            os.kill(os.getpid(), signal.SIGKILL if how == KILL else signal.SIGSTOP)


class _Transaction:
    """What the transaction does that is open; used in the journal's thread."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.operations: set[str] = set()

    def passes(self, side: str) -> None:
        for operation in sorted(self.operations):
            self._watch.passes(f"{commit_name(operation)}/{side}")


def install(watch: Watch) -> None:
    """Wrap all boundaries, for as long as the process lives."""
    transaction = _Transaction(watch)
    _name_operations()
    _watch_commits(transaction)
    _note(transaction, lease, "fence", Beside.FENCE, bool)
    _note(transaction, logs, "take_over", Beside.TAKE_OVER, bool)
    _note(transaction, logs, "give_back", Beside.GIVE_BACK_LOG, bool)
    _note(transaction, inbox, "put_in", Beside.HAND_OVER, bool)
    _note(transaction, inbox, "read_inbox", Beside.READ_INBOX, bool)
    _note(transaction, Matching, "match_again", Beside.MATCH_AGAIN, lambda effect: effect is not None)
    for place, name in ((opening, "begin_work"), (commits, "release_lease")):
        _wrap(watch, place, name, commit_name(name))
    for owner, name in STEPS:
        _wrap(watch, owner, name, f"{owner.__name__}.{name}")


def _name_operations() -> None:
    """Have each operation carry the name of the journal's method that asked for it."""
    journals: Any = PostgresqlJournal
    attempt = journals._try

    def named(journal: PostgresqlJournal, operation: Any, then: Any = None) -> Any:
        if not hasattr(operation, "boundary"):
            operation.boundary = asked_by()
        return attempt(journal, operation, then)

    journals._try = named


def _watch_commits(transaction: _Transaction) -> None:
    """Pass a boundary before and after each COMMIT, for each operation that it makes durable.

    What follows the statement is still in the thread that writes: nobody who waits has an answer yet.
    """
    journals: Any = PostgresqlJournal
    attempt, run, commit = journals._attempt_once, journals._run, journals._committed

    def attempted(journal: PostgresqlJournal, batch: Sequence[Any]) -> Any:
        transaction.operations.clear()
        return attempt(journal, batch)

    def ran(journal: PostgresqlJournal, batch: Sequence[Any]) -> None:
        run(journal, batch)
        for request in batch:
            transaction.operations.update(_names(request))
        if not batch:
            transaction.operations.add("renew")

    def committed(journal: PostgresqlJournal, db: Any) -> Any:
        transaction.passes("before")
        error = commit(journal, db)
        if error is None:
            transaction.passes("after")
        return error

    journals._attempt_once = attempted
    journals._run = ran
    journals._committed = committed


def _names(request: Any) -> Iterator[str]:
    name = request.operation.boundary
    if name == "change":
        for step in request.operation.steps:
            yield change_name(step.before, step.after)
        return
    yield name
    if name == "receive" and any(
        isinstance(each, MatchedReceipt) and each.result == "unmatched" for each in request.result
    ):
        yield KEPT


def _note(
    transaction: _Transaction, place: Any, name: str, operation: str, happened: Callable[[Any], bool]
) -> None:
    """Count a function as an operation of the transaction that it is called in, if it did something."""
    function = getattr(place, name)

    @wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if happened(result):
            transaction.operations.add(operation)
        return result

    setattr(place, name, noted)


def _wrap(watch: Watch, place: Any, name: str, boundary: str) -> None:
    function = getattr(place, name)

    @wraps(function)
    def passed(*args: Any, **kwargs: Any) -> Any:
        watch.passes(f"{boundary}/before")
        result = function(*args, **kwargs)
        watch.passes(f"{boundary}/after")
        return result

    @wraps(function)
    async def passed_async(*args: Any, **kwargs: Any) -> Any:
        watch.passes(f"{boundary}/before")
        result = await function(*args, **kwargs)
        watch.passes(f"{boundary}/after")
        return result

    setattr(place, name, passed_async if inspect.iscoroutinefunction(function) else passed)
