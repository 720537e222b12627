"""The embedded journal: one SQLite file, one connection, one thread that writes, commits shared by all that wait.

Write-ahead log with `synchronous=FULL`: a commit that was acknowledged survives a loss of power. What waits while
a commit is under way goes into the next one together, so that a commit carries hundreds of rows under load
(docs/decisions/0004-journal.md).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread

from deliveryd.errors import DeliverydError, JournalError, JournalFull, JournalLocked
from deliveryd.journal.base import Change, Counts, Due, OutboxRow, Receipt, Recovery
from deliveryd.journal.operations import Operations
from deliveryd.journal.schema import EventWriter, prepare
from deliveryd.model import Malformed, QueuedMessage

LINGER = 0.002
"""Seconds that a commit waits for company: the fewer commits, the less each message costs."""

T = TypeVar("T")


class _Request(Generic[T]):
    """An operation that waits for its commit."""

    __slots__ = ("done", "error", "operation", "result")

    def __init__(self, operation: Callable[[sqlite3.Connection], T]) -> None:
        self.operation = operation
        self.done = anyio.Event()
        self.result: T
        self.error: DeliverydError | None = None


class SqliteJournal:
    """A journal in one SQLite file; see `open_journal`."""

    def __init__(
        self, db: sqlite3.Connection, namespace: str, operations: Operations, observe: Callable[[float, int], None]
    ) -> None:
        self.namespace = namespace
        self._db = db
        self._operations = operations
        self._observe = observe
        self._waiting: list[_Request[Any]] = []
        self._wake = anyio.Event()
        self._thread = anyio.CapacityLimiter(1)
        self._closing = False

    async def take(
        self, messages: Sequence[QueuedMessage], malformed: Sequence[Malformed], at: int
    ) -> Collection[int]:
        """Record a batch of the queue; return the ids that are new."""
        return await self._commit(lambda db: self._operations.take(db, messages, malformed, at))

    async def change(self, changes: Sequence[Change]) -> None:
        """Record steps of messages."""
        await self._commit(lambda db: self._operations.change(db, changes))

    async def due(self, now: int, room: Mapping[str, int]) -> Due:
        """Make waiting messages READY whose time has come."""
        return await self._commit(lambda db: self._operations.due(db, now, room))

    async def outbox(self, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that wait."""
        return await self._commit(lambda db: self._operations.outbox(db, after, limit))

    async def accept(self, rows: Sequence[OutboxRow], at: int) -> None:
        """Mark events as accepted."""
        await self._commit(lambda db: self._operations.accept(db, rows, at))

    async def refuse(self, row: OutboxRow, reason: str, at: int) -> None:
        """Set an event aside."""
        await self._commit(lambda db: self._operations.refuse(db, row, reason, at))

    async def receive(self, receipts: Sequence[Receipt]) -> list[str]:
        """Record providers' updates."""
        return await self._commit(lambda db: self._operations.receive(db, receipts))

    async def recover(self, now: int, lanes: Collection[str]) -> Recovery:
        """Put in order what an earlier run left."""
        return await self._commit(lambda db: self._operations.recover(db, now, lanes))

    async def counts(self) -> Counts:
        """The sums of what is open."""
        return await self._commit(self._operations.counts)

    async def forget(self, before: int, limit: int) -> int:
        """Delete old ended messages."""
        return await self._commit(lambda db: self._operations.forget(db, before, limit))

    async def _commit(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        if self._closing:
            raise JournalError("the journal is closed")
        request = _Request(operation)
        self._waiting.append(request)
        self._wake.set()
        await request.done.wait()
        if request.error is not None:
            raise request.error
        return request.result

    async def run(self) -> None:
        """Commit what waits, again and again, until the journal is closed and nothing waits any more."""
        while self._waiting or not self._closing:
            await self._wake.wait()
            self._wake = anyio.Event()
            if not self._closing:
                await anyio.sleep(LINGER)
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    await anyio.to_thread.run_sync(partial(self._transact, batch), limiter=self._thread)
                finally:
                    for request in batch:
                        request.done.set()

    def stop(self) -> None:
        """Let `run` end after what waits now."""
        self._closing = True
        self._wake.set()

    def _transact(self, batch: Sequence[_Request[Any]]) -> None:
        """Run operations in one transaction, in the thread that writes. Any that fails takes back all."""
        started = time.perf_counter()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for request in batch:
                request.result = request.operation(self._db)
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            translated = _translate(error)
            for request in batch:
                request.error = translated
            if not isinstance(translated, JournalFull):
                raise translated from error
        self._observe(time.perf_counter() - started, len(batch))


def _translate(error: BaseException) -> DeliverydError:
    if isinstance(error, DeliverydError):
        return error
    if isinstance(error, sqlite3.Error):
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return JournalFull("there is no room left on the journal's disk")
        return JournalError(f"the journal can't be written: {error}")
    raise error


@asynccontextmanager
async def open_journal(
    path: Path, *, details_field: str = "details", observe: Callable[[float, int], None] = lambda _s, _n: None
) -> AsyncIterator[SqliteJournal]:
    """Open the journal for the one process that works on it, and close it when the block ends.

    `observe` hears of each commit: its seconds, and how many operations shared it.
    Raises JournalLocked when another process has it open, JournalError when the file can't be used.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _Lock(path.with_name(path.name + ".lock")):
        db = await anyio.to_thread.run_sync(_connect, path)
        try:
            namespace = _checked(path, lambda: prepare(db))
            (last_seq,) = db.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()
            operations = Operations(namespace, EventWriter(details_field), last_seq)
            journal = SqliteJournal(db, namespace, operations, observe)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(journal.run)
                try:
                    yield journal
                finally:
                    journal.stop()
        finally:
            db.close()


def _connect(path: Path) -> sqlite3.Connection:
    def connect() -> sqlite3.Connection:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite would make it readable by others
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA cache_size = -16384")
        return db

    return _checked(path, connect)


def _checked(path: Path, use: Callable[[], T]) -> T:
    try:
        return use()
    except sqlite3.DatabaseError as error:
        raise JournalError(
            f"{path} can't be used as a journal: {error}. It is left as it is: move it away to begin with an empty"
            " one, or bring back a backup"
        ) from error
    except OSError as error:
        raise JournalError(f"{path} can't be used as a journal: {error.strerror}") from error


class _Lock:
    """Keeps a second process away from the journal, for as long as this one lives."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        try:
            self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"{self._path} can't be made: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._file, 32).decode("ascii", "replace").strip()
            os.close(self._file)
            raise JournalLocked(
                f"the journal is in use by another deliveryd (process {owner or 'unknown'});"
                " give each instance its own journal.url"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
