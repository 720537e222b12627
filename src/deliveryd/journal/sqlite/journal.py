"""The embedded journal: one SQLite file, one connection, one thread that writes, commits that many share.

Write-ahead log with `synchronous=FULL`: a commit that was acknowledged survives a loss of power. What waits
while a commit is under way goes into the next one together, so that a commit carries hundreds of rows under
load (docs/decisions/0004-journal.md).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio

from deliveryd.errors import JournalError, JournalFull
from deliveryd.journal.group_commit import PendingOperation
from deliveryd.journal.journal import Journal
from deliveryd.journal.log import Log, LogTerms
from deliveryd.journal.sql import own_values
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.outbox import EventWriter
from deliveryd.journal.sql.provider_ids import IdsByEra
from deliveryd.journal.sql.statements import EMPTIED
from deliveryd.journal.sqlite.connection import BUSY_TIMEOUT, FileConnection, abandon, advice, unusable
from deliveryd.journal.sqlite.files import check_writable, give_back_pages, make_folder, sync_names
from deliveryd.journal.sqlite.lock import Presence, holding, lock_of
from deliveryd.journal.sqlite.opening import checked, checkpoint_pages, open_database, read
from deliveryd.model import SteadyClock
from deliveryd.runtime.threads import Blocking, in_thread, own_thread

T = TypeVar("T")


class Threads(NamedTuple):
    """Where the journal writes, and where it reads beside that."""

    write: Blocking
    read: Blocking


class SqliteJournal(Journal):
    """A journal in one SQLite file; see `open_journal_file`."""

    common_clock: SteadyClock | None = None

    def __init__(
        self,
        db: FileConnection,
        terms: LogTerms,
        observe: Callable[[float, int], None],
        threads: Threads,
        *,
        path: Path,
        presence: Presence,
        reserve: int,
    ) -> None:
        own = Log(db, 0, terms)
        super().__init__(threads.write, own, terms)
        self.stop_key = own_values.stop_key_of(db)
        self.last_at = own.last_at
        self.kept_clock = own_values.kept_clock(db)
        self._db = db
        self._observe = observe
        self._threads = threads
        self._path = path
        self._presence = presence
        self.reserve = reserve
        self._shrink = False
        self._shrunk = anyio.Event()
        self._log_is_empty = False

    async def _read(self, query: Callable[[Db], T]) -> T:
        if self.misplaced() is not None:  # by its name another journal would be read, or none
            return await self._commit(query)
        return await self._threads.read(partial(read, self._path, query))

    async def give_back(self, limit: int) -> int:
        """Make the file smaller."""
        return await self._commit(lambda db: give_back_pages(db, limit))

    async def cut_log(self) -> bool:
        """Bring all of the log into the file and empty it; return whether that was done."""
        if self._closing or self._broken is not None:
            return False
        shrunk = self._shrunk
        self._ask_to_shrink()
        await shrunk.wait()
        return self._log_is_empty

    def has_room(self) -> bool:
        """Whether the disk has more than the reserve, which is kept for what is under way already.

        When it hasn't, this also asks for the log to be made shorter, which may give room back.
        """
        has_room = self._presence.room() > self.reserve
        if not has_room:
            self._ask_to_shrink()
        return has_room

    def room(self) -> int:
        """The bytes that are free on the disk."""
        return self._presence.room()

    def misplaced(self) -> str | None:
        """What is wrong with where the open files lie, and what to do; None: nothing."""
        return self._presence.misplaced()

    def _ask_to_shrink(self) -> None:
        self._shrink = True
        self._wake.set()

    def _seek_room(self) -> None:
        self._ask_to_shrink()

    async def run(self) -> None:
        """Commit what waits, again and again, until the journal is closed and nothing waits any more."""
        try:
            await self._commit_what_waits()
            self._log_is_empty = await self._threads.write(self._shrink_log)
        finally:
            self._shrunk.set()

    async def _keep_up(self) -> None:
        if self._shrink:
            self._shrink = False
            self._log_is_empty = await self._threads.write(self._shrink_log)
            self._shrunk.set()
            self._shrunk = anyio.Event()

    def _shrink_log(self) -> bool:
        """Bring what is in the log into the file and empty it; return whether that was done.

        Both together need less of a disk that is full then, and what was deleted isn't in the log any more.
        Readers aren't waited for: the line would wait too.
        """
        if self._broken is not None:
            return False
        try:
            self._db.execute("PRAGMA busy_timeout = 0")
            busy, *_ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT * 1000:.0f}")
        except sqlite3.Error as error:
            self._judged(error)
            return False
        return not busy

    async def _settle(self, batch: Sequence[PendingOperation[Db, Any]]) -> None:
        await self._write_in(partial(self._transact, batch))

    def _transact(self, batch: Sequence[PendingOperation[Db, Any]]) -> None:
        started = time.perf_counter()
        error = self._attempt(batch)
        if error is not None:
            for request in batch:
                request.error = self._attempt([request]) if len(batch) > 1 else error
        self._observe(time.perf_counter() - started, len(batch))

    def _attempt(self, batch: Sequence[PendingOperation[Db, Any]]) -> Exception | None:
        """Run operations in one transaction; return what they, or the disk, failed with.

        What a disk failed to do isn't asked of it again, nor anything else: the journal is of no more use
        until it is opened again.
        """
        if self._broken is not None:
            return self._broken
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for request in batch:
                request.result = request.operation(self._db)
            self._db.execute("COMMIT")
        except Exception as error:  # raised where the operation was asked for
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            return self._judged(error)
        return None

    def _judged(self, error: Exception) -> Exception:
        """The error as callers get it; one of the disk is the end of this journal."""
        failure = _translate(error)
        if isinstance(failure, JournalError) and not isinstance(failure, JournalFull):
            self._broken = failure
        return failure


def _translate(error: Exception) -> Exception:
    if not isinstance(error, sqlite3.Error):
        return error
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return JournalFull()
    return unusable(f"the journal can't be used any more: {error}. {advice(error)}", error)


@asynccontextmanager
async def open_journal_file(
    path: Path,
    *,
    details_field: str = "details",
    observe: Callable[[float, int], None] = lambda _s, _n: None,
    blocking: Blocking | None = None,
    reserve: int = 0,
    lock_timeout: float = 0.0,
    keep_variables: bool = False,
    service: str | None = None,
) -> AsyncIterator[SqliteJournal]:
    """Open the journal for the one process that works on it, and close it when the block ends.

    All of its files lie beside `path`, which is no link itself.

    `observe` is called after each commit with its seconds and how many operations shared it. With less than
    `reserve` bytes free on the disk, `has_room` is false. `keep_variables`: not emptied when a message was
    sent. `blocking` None: the journal has a thread of its own. `service` is the address of the service that
    it belongs to from now on, if to none so far.
    Raises JournalLocked when another process still has it open after `lock_timeout` seconds, JournalError
    when the file can't be used.
    """
    checked(path, partial(make_folder, path.parent))
    check_writable(path)
    async with (
        holding(lock_of(path), lock_timeout) as lock,
        nullcontext(blocking) if blocking is not None else own_thread("journal") as write,
    ):
        db = await write(partial(open_database, path))
        db.execute(f"PRAGMA wal_autocheckpoint = {checkpoint_pages(reserve)}")
        journal = None
        try:
            if service is not None:
                checked(path, partial(own_values.belong_to, db, service))
            checked(path, partial(sync_names, path))  # SQLite passes over a failure to do so
            terms = LogTerms(
                EventWriter(details_field),
                own_values.namespace_of(db),
                "" if keep_variables else EMPTIED,
                IdsByEra(),
            )
            threads = Threads(write, blocking or in_thread)
            with closing(checked(path, partial(Presence, path, lock))) as presence:
                make = partial(SqliteJournal, db, terms, observe, threads)
                journal = checked(path, partial(make, path=path, presence=presence, reserve=reserve))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(journal.run)
                    try:
                        yield journal
                    finally:
                        journal.stop()
        finally:
            if journal is not None and journal.is_broken:
                abandon(db, path)
            db.close()
