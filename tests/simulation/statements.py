"""Journals of several workers in one event loop: each stops before every statement until the stage goes on.

What a journal does in its thread runs in a greenlet. Before each statement it returns to the event loop,
which lets virtual time pass, and other workers' statements come between. A statement that waits for another
worker's lock returns as well, and is looked at again after every statement of the others. Only one thing runs
at a time, so that a seed gives the same order of statements again.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from random import Random
from typing import Any, NoReturn, TypeVar, cast
from unittest.mock import patch

import anyio
import psycopg
from greenlet import getcurrent, greenlet
from psycopg.pq import TransactionStatus

from deliveryd.errors import JournalUnreachable
from deliveryd.journal.postgresql.connection import Connected

T = TypeVar("T")

GLANCE = 0.002
"""Seconds, of the machine's own time, after which it is asked whether a statement waits for a lock."""

LOOK_AGAIN = 0.5
"""Seconds of the plan after which a blocked statement is looked at again."""

SETTLED = 0.03
"""Seconds of the machine's own time within which the server has found a deadlock (`DEADLOCK_MS`)."""

DEADLOCK_MS = 10

_WAITS = "SELECT pg_blocking_pids(%s::int4)"
_THERE = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"


class Stop(Enum):
    """Why a journal's work returned to the event loop."""

    BEFORE = "before a statement"
    BLOCKED = "a statement waits for a lock"


class Killed(BaseException):
    """The process ended within a journal's work."""


class Server:
    """What the stage sees of the server, and the order of all statements."""

    def __init__(self, observer: Connected, seed: int, seconds: float) -> None:
        self._observer = observer
        self._random = Random(f"statements {seed}")
        self._seconds = seconds
        self._moved = anyio.Event()
        self.statements = 0
        self.blocked = 0
        """Statements that waited for another worker's lock."""

    def seconds(self) -> float:
        """What the next statement takes."""
        return self._seconds * self._random.choice((0.0, 0.5, 1.0, 1.0, 1.0, 2.5))

    def observes_with(self, db: Connected) -> bool:
        """Whether a connection is the stage's own."""
        return db is self._observer

    def is_blocked(self, pid: int) -> bool:
        """Whether a backend waits for a lock."""
        ((pids,),) = self._observer.execute(_WAITS, (pid,)).fetchall()
        return bool(pids)

    def await_end(self, pid: int) -> None:
        """Return when a backend is gone whose connection was closed, and its locks with it."""
        while self._observer.execute(_THERE, (pid,)).fetchone():
            time.sleep(GLANCE / 2)
        self.note()

    def terminate(self, pid: int) -> None:
        """End a backend, as the server does that stands idle within a transaction."""
        self._observer.execute("SELECT pg_terminate_backend(%s::int4)", (pid,))
        self.await_end(pid)

    def note(self) -> None:
        """Something was done: locks may be free now."""
        self._moved.set()
        self._moved = anyio.Event()

    async def moved(self) -> None:
        """Return when another statement is done."""
        await self._moved.wait()


class Process:
    """What a worker's process has to do with the database. `idle_limit`: as for a connection."""

    def __init__(self, server: Server, idle_limit: float) -> None:
        self.server = server
        self.is_cut_off = False
        """Whether the database is out of reach."""
        self.cuts = 0
        """How many of the next commits are answered with the loss of the connection."""
        self.frozen_until = 0.0
        self._idle_limit = idle_limit
        self._frozen_at = 0.0
        self._is_killed = False
        self._at_work = anyio.Lock()
        self._scopes: set[anyio.CancelScope] = set()
        self._connections: list[Connected] = []

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Do a journal's work statement by statement; only a kill ends it before its end."""
        if not _is_of_a_journal(work):
            await anyio.lowlevel.checkpoint()
            return work()
        with anyio.CancelScope(shield=True) as scope:
            self._scopes.add(scope)
            try:
                if self._is_killed:
                    scope.cancel()
                async with self._at_work:
                    return await self._done(work)
            finally:
                self._scopes.discard(scope)
        return await _nothing_more()

    async def _done(self, work: Callable[[], T]) -> T:
        journal = _JournalWork(work, self)
        try:
            while (stop := journal.go_on()) is not None:
                if stop[0] is Stop.BEFORE:
                    await anyio.sleep(self.server.seconds())
                    await self.awake(stop[1])
                else:
                    self.server.blocked += 1
                    with anyio.move_on_after(LOOK_AGAIN):  # a lock may also end with what is no statement
                        await self.server.moved()
                    await self.awake(stop[1])
        finally:
            journal.end()
        if journal.error is not None:
            raise journal.error
        return cast("T", journal.result)

    async def awake(self, db: Connected | None = None) -> None:
        """Return when the process runs; the server ends what stands idle in a transaction for too long."""
        while (left := self.frozen_until - anyio.current_time()) > 0.0:
            if db is None or db.closed or db.info.transaction_status is TransactionStatus.IDLE:
                await anyio.sleep(left)
                continue
            limit = self._frozen_at + self._idle_limit - anyio.current_time()
            if limit > 0.0:
                await anyio.sleep(min(left, limit))
            else:
                self.server.terminate(db.info.backend_pid)
                db = None

    def freeze(self, seconds: float) -> None:
        """Stop the process for a while."""
        self._frozen_at = anyio.current_time()
        self.frozen_until = self._frozen_at + seconds

    def cut_off(self) -> None:
        """The database is out of reach, and the connections to it are lost on both sides."""
        self.is_cut_off = True
        for db in self._connections:
            self._lose(db)
        self._connections.clear()

    def begin(self) -> None:
        """The process starts, after it was killed."""
        self._is_killed = False
        self._at_work = anyio.Lock()

    def kill(self) -> None:
        """End the process: what it was about in the database is rolled back."""
        self._is_killed = True
        self.frozen_until = 0.0
        for db in self._connections:
            self._lose(db)
        self._connections.clear()
        for scope in self._scopes:
            scope.cancel()

    def connected(self, connect: Callable[[], Connected]) -> Connected:
        """Connect for the process. Raises JournalUnreachable."""
        if self.is_cut_off or self._is_killed:
            raise JournalUnreachable("the plan cuts the database off")
        db = connect()
        db.execute(f"SET deadlock_timeout = {DEADLOCK_MS}")
        self._connections.append(db)
        return db

    def _lose(self, db: Connected) -> None:
        if not db.closed:
            pid = db.info.backend_pid
            db.pgconn.finish()
            self.server.await_end(pid)

    def stopped_before(self, db: Connected) -> None:
        """Called within the work: return when a statement may begin."""
        if self._is_killed:
            raise psycopg.OperationalError("the process ended")
        _JournalWork.current().stop(Stop.BEFORE, db)
        if db.pgconn.status != 0:
            raise psycopg.OperationalError("the connection is lost")

    def driven(self, db: Connected, statement: Generator[Any, Any, T]) -> T:
        """Called within the work: let a statement run to its end."""
        return self.carried_out(db, lambda: self._driven(db, statement))

    def carried_out(self, db: Connected, statement: Callable[[], T]) -> T:
        """Called within the work: count a statement, and let others know when it is done."""
        before = db.pgconn.transaction_status
        self.server.statements += 1
        try:
            return statement()
        finally:
            if not db.closed and before is not db.pgconn.transaction_status is TransactionStatus.IDLE:
                self._cut_after_commit(db)
            self.server.note()

    def _cut_after_commit(self, db: Connected) -> None:
        if self.cuts:
            self.cuts -= 1
            self._lose(db)
            raise psycopg.OperationalError("the connection is lost, and with it the answer to a COMMIT")

    def _driven(self, db: Connected, statement: Generator[Any, Any, T]) -> T:
        began = time.monotonic()
        try:
            wanted, poll = next(statement), select.poll()
            while True:
                if db.pgconn.status != 0:
                    raise psycopg.OperationalError("the connection is lost")
                poll.register(db.pgconn.socket, int(wanted))
                if poll.poll(GLANCE * 1000):
                    wanted = statement.send(wanted)
                    poll = select.poll()
                elif time.monotonic() - began > SETTLED and self.server.is_blocked(db.info.backend_pid):
                    _JournalWork.current().stop(Stop.BLOCKED, db)
                    began = time.monotonic() - SETTLED
        except StopIteration as end:
            return cast("T", end.value)


async def _nothing_more() -> NoReturn:
    """A kill cancels all around as well."""
    await anyio.sleep_forever()
    raise Killed


class _JournalWork:
    """A piece of a journal's work, with what came of it."""

    def __init__(self, work: Callable[[], object], process: Process) -> None:
        self._work = work
        self.process = process
        self.result: object = None
        self.error: BaseException | None = None
        self._greenlet = greenlet(self._run)
        self._greenlet.work = self

    @property
    def dead(self) -> bool:
        """Whether it came to its end."""
        return bool(self._greenlet.dead)

    def go_on(self) -> tuple[Stop, Connected] | None:
        """Let it run until it stops; None: it came to its end."""
        return cast("tuple[Stop, Connected] | None", self._greenlet.switch())

    def end(self) -> None:
        """End it where it stands."""
        while not self._greenlet.dead:
            with suppress(Killed):
                self._greenlet.throw(Killed)

    def stop(self, why: Stop, db: Connected) -> None:
        """Called within the work: return to the event loop, until it goes on."""
        self._greenlet.parent.switch((why, db))

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # raised where the work was asked for
            self.error = error

    @staticmethod
    def current() -> _JournalWork:
        """The one that runs."""
        work = getcurrent().work
        assert isinstance(work, _JournalWork)
        return work


def acting() -> Process | None:
    """The process in whose name something is done in a journal just now; None: it is the stage itself."""
    work = getattr(getcurrent(), "work", None)
    return work.process if isinstance(work, _JournalWork) else None


def _is_of_a_journal(work: Callable[[], object]) -> bool:
    inner = getattr(work, "func", work)
    inner = getattr(inner, "__func__", inner)
    return "journal" in str(getattr(inner, "__module__", "") or type(inner).__module__)


@contextmanager
def statement_by_statement() -> Iterator[None]:
    """While it lasts, connections stop before each statement of a journal's work."""
    usual = psycopg.Connection.wait

    def wait(db: Any, statement: Any, *terms: Any, **more: Any) -> Any:
        process = acting()
        if process is None or process.server.observes_with(db):
            return usual(db, statement, *terms, **more)
        process.stopped_before(db)
        return process.driven(db, statement)

    with patch.object(psycopg.Connection, "wait", wait):
        yield
