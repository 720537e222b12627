"""The embedded journal: one SQLite file, one connection, one thread that writes, commits that many share.

Write-ahead log with `synchronous=FULL`: a commit that was acknowledged survives a loss of power. What waits
while a commit is under way goes into the next one together, so that a commit carries hundreds of rows under
load (docs/decisions/0004-journal.md).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from deliveryd.errors import JournalError, JournalFull
from deliveryd.journal import account, deadlines, leaving, overdue, pauses, removal, upkeep
from deliveryd.journal.base import (
    Account,
    Allotment,
    Counts,
    Doubtful,
    Due,
    FromOthers,
    Left,
    MatchedReceipt,
    Open,
    Orphans,
    OutboxRow,
    PassedDeadlines,
    Recorded,
    Recovery,
)
from deliveryd.journal.damage import abandon, advice, unusable
from deliveryd.journal.decisions import Decisions
from deliveryd.journal.emptying import EMPTIED
from deliveryd.journal.event_json import EventWriter
from deliveryd.journal.files import check_writable, make_folder, sync_names
from deliveryd.journal.group_commit import GroupCommit, PendingOperation
from deliveryd.journal.lock import holding, lock_of
from deliveryd.journal.open_work import open_work
from deliveryd.journal.operations import Operations
from deliveryd.journal.orders import Decided, Order
from deliveryd.journal.outbox import Outbox, written
from deliveryd.journal.pauses import Pause
from deliveryd.journal.presence import Presence
from deliveryd.journal.read_transaction import read
from deliveryd.journal.receipt_match import Matching
from deliveryd.journal.service import belong_to
from deliveryd.journal.sqlite_file import BUSY_TIMEOUT, checked, checkpoint_pages, open_database
from deliveryd.journal.stopped import in_force, stop_key_of, stops_reported
from deliveryd.journal.used_tokens import SignedToken, use_token
from deliveryd.model import Clock, Entry, Malformed, QueuedMessage, Reported, StopChange, Transition
from deliveryd.runtime.threads import Blocking, in_thread, own_thread


class Threads(NamedTuple):
    """Where the journal writes, and where it reads beside that."""

    write: Blocking
    read: Blocking


class SqliteJournal(GroupCommit[sqlite3.Connection]):
    """A journal in one SQLite file; see `open_journal_file`."""

    is_shared = False
    common_clock: Clock | None = None

    def __init__(
        self,
        db: sqlite3.Connection,
        namespace: str,
        outbox: Outbox,
        observe: Callable[[float, int], None],
        threads: Threads,
        *,
        path: Path,
        presence: Presence,
        reserve: int,
        last_at: int,
        emptied: str,
        stop_key: bytes,
    ) -> None:
        super().__init__(threads.write)
        self.namespace = namespace
        self.stop_key = stop_key
        self.last_at = last_at
        self.kept_clock = upkeep.kept_clock(db)
        self._db = db
        self._emptied = emptied
        self._matching = Matching(outbox, namespace, emptied)
        self._operations = Operations(outbox, self._matching, emptied)
        self._decisions = Decisions(self._operations, self._matching, outbox)
        self._observe = observe
        self._threads = threads
        self._path = path
        self._presence = presence
        self._retention = upkeep.RetentionSweep()
        self.reserve = reserve
        self._shrink = False
        self._shrunk = anyio.Event()
        self._log_is_empty = False

    async def take(
        self, messages: Sequence[QueuedMessage], malformed: Sequence[Malformed], at: int, lost: int = 0
    ) -> Mapping[int, int]:
        """Record a batch of the queue; return the ids that are new, with their beginnings."""

        def record(db: sqlite3.Connection) -> Mapping[int, int]:
            account.add_lost(db, lost, at)
            return self._operations.take(db, messages, malformed, at)

        return await self._commit(record)

    async def change(self, transitions: Sequence[Transition]) -> Recorded:
        """Record steps of messages, and apply the receipts that were kept for them."""
        return await self._commit(lambda db: self._operations.change(db, transitions))

    async def due(self, now: int, room: Mapping[str, int]) -> Due:
        """Make waiting messages READY whose time has come."""
        return await self._commit(lambda db: self._operations.due(db, now, room))

    async def overdue(self, now: int, limit: int) -> Due:
        """Make messages READY that have waited for something for long enough."""
        return await self._commit(lambda db: self._operations.overdue(db, now, limit))

    async def resume(self, waits_for: Sequence[str], limit: int) -> list[Entry]:
        """Make messages READY that wait for one of these."""
        return await self._commit(lambda db: self._operations.resume(db, waits_for, limit))

    async def wake(self, waits_for: Collection[str], at: int, limit: int) -> int:
        """Let messages be due that wait for one of these."""
        return await self._commit(lambda db: self._operations.wake(db, waits_for, at, limit))

    async def release(self, provider: str, at: int, limit: int) -> int:
        """Let messages be due at any provider that wait for this one."""
        return await self._commit(lambda db: self._operations.release(db, provider, at, limit))

    async def park(self, waits_for: str, instead_of: Collection[str], limit: int) -> int:
        """Let messages wait for the end of a pause instead of these."""
        return await self._commit(lambda db: pauses.park(db, waits_for, instead_of, limit))

    async def end_pauses(self, now: int) -> Sequence[Pause]:
        """Resume what was paused until an instant that has come."""
        return await self._commit(lambda db: self._decisions.end_pauses(db, now))

    async def retime_pauses(self, back: int, now: int) -> Sequence[Pause]:
        """Bring pauses in line with a clock that was put back."""

        def retime(db: sqlite3.Connection) -> Sequence[Pause]:
            pauses.retime_pauses(db, back, now)
            return pauses.pauses(db)

        return await self._commit(retime)

    async def largest_cause(self) -> tuple[str, int]:
        """What most messages wait for; read beside the writer, since it scans all that wait."""
        return await self._threads.read(partial(read, self._path, upkeep.largest_cause))

    async def outbox(self, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that wait."""
        return await self._commit(lambda db: self._operations.outbox(db, after, limit))

    async def accept(self, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Mark events as accepted; return the messages that were set aside and may be sent now."""
        return await self._commit(lambda db: self._operations.accept(db, rows, at))

    async def accept_early(self, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Let messages go on whose `dequeued` was accepted before events ahead of it were answered."""
        return await self._commit(lambda db: self._operations.accept_early(db, rows, at))

    async def put_last(self, rows: Sequence[OutboxRow]) -> None:
        """Have events wait behind all others, with the later ones of their messages."""
        await self._commit(lambda db: self._operations.put_last(db, rows))

    async def refuse(self, row: OutboxRow, reason: str, at: int) -> int:
        """Set an event aside; return how often it was refused by now."""
        return await self._commit(lambda db: self._operations.refuse(db, row, reason, at))

    async def receive(
        self, reports: Sequence[Reported], stops: Sequence[StopChange] = ()
    ) -> list[MatchedReceipt]:
        """Record providers' updates."""
        return await self._try(lambda db: [*self._matching.receive(db, reports), *stops_reported(db, stops)])

    async def id_in_doubt(self, message_id: int, key: int) -> str | None:
        """The provider's id of a message in doubt."""
        return await self._commit(lambda db: upkeep.id_in_doubt(db, message_id, key))

    async def stopped(self) -> list[tuple[str, bytes]]:
        """The recipients who can't be reached any more."""
        return await self._commit(in_force)

    async def pass_deadlines(
        self, listened: int, at: int, providers: Collection[str], limit: int
    ) -> PassedDeadlines:
        """Add to the listening time; send messages on whose deadline passed."""
        return await self._commit(
            lambda db: deadlines.pass_deadlines(db, listened, at, providers, limit, emptied=self._emptied)
        )

    async def count_overdue(self, provider: str, since: int | None, until: int) -> int:
        """Count what a provider accepted and nobody confirmed; read beside the writer."""
        if self.misplaced() is not None:  # by its name another journal would be read, or none
            return 0
        query = partial(overdue.count_overdue, provider, since, until)
        count = await self._threads.read(partial(read, self._path, query))
        if count:
            await self._commit(lambda db: overdue.keep_counted(db, provider, until))
        return count

    async def recover(self, now: int, providers: Collection[str]) -> Recovery:
        """Put in order what an earlier run left."""
        return await self._commit(lambda db: upkeep.recover(db, now, providers, self._matching))

    async def use_token(self, token: SignedToken, at: int) -> bool:
        """Note what a token was used for; return whether it wasn't used for anything else before."""
        return await self._commit(lambda db: use_token(db, token, at))

    async def leave(self, providers: Collection[str], at: int, limit: int) -> Left:
        """Hold or release what waits at removed providers."""
        return await self._commit(lambda db: leaving.leave(db, providers, at, limit))

    async def held(self, providers: Collection[str], after: int, limit: int) -> list[Doubtful]:
        """The messages held in doubt at these providers."""
        return await self._commit(lambda db: removal.held(db, providers, after, limit))

    async def orphans(self, provider: str, sent_since: int) -> Orphans:
        """Count what the removal of a provider would leave; read beside the writer."""
        query = partial(removal.count_orphans, provider, sent_since)
        if self.misplaced() is not None:  # by its name another journal would be read, or none
            return await self._commit(query)
        return await self._threads.read(partial(read, self._path, query))

    async def note_down(self, since: Mapping[str, int]) -> None:
        """Keep since when all providers of these channels are down."""
        await self._commit(lambda db: upkeep.note_down(db, since))

    async def retime(self, back: int, now: int, longest: int) -> None:
        """Bring due times in line with a clock that was put back."""
        await self._commit(lambda db: self._operations.retime(db, back, now + longest))

    async def hasten(self, due: Mapping[int, int]) -> None:
        """Let waiting messages be due earlier."""
        await self._commit(lambda db: self._operations.hasten(db, due))

    async def counts(self) -> Counts:
        """The sums of what is open."""
        return await self._commit(upkeep.counts)

    async def open_work(self) -> Open:
        """What hasn't ended; read beside the writer, since it scans all that waits."""
        if self.misplaced() is not None:  # by its name another journal would be read, or none
            return Open()
        return await self._threads.read(partial(read, self._path, open_work))

    async def account(self) -> Account:
        """Where all messages are; read beside the writer, since it counts all that has ended."""
        if self.misplaced() is not None:  # by its name another journal would be read, or none
            return await self._commit(account.account)
        return await self._threads.read(partial(read, self._path, account.account))

    async def decide(self, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an operator's order."""
        return await self._try(lambda db: self._decisions.carry_out(db, order, at, providers))

    async def keep_clock(self, record: str) -> None:
        """Keep what is known of the clock for the next run."""
        await self._commit(lambda db: upkeep.keep_clock(db, record))

    async def prune(self, before: int, limit: int) -> int:
        """Delete old ended messages."""
        return await self._commit(lambda db: self._retention.step(db, before, limit))

    async def give_back(self, limit: int) -> int:
        """Make the file smaller."""
        return await self._commit(lambda db: upkeep.give_back(db, limit))

    async def cut_log(self) -> bool:
        """Bring all of the log into the file and empty it; return whether that was done."""
        if self._closing or self._broken is not None:
            return False
        shrunk = self._shrunk
        self._ask_to_shrink()
        await shrunk.wait()
        return self._log_is_empty

    async def renew(self) -> None:
        """One worker alone has the file: there is no lease."""

    def outlasts(self, seconds: float) -> bool:  # noqa: ARG002  # there is no lease
        """Whether nobody adopts what this worker has."""
        return True

    async def allot(self, provider: str, interval: float, wanted: int) -> Allotment:  # noqa: ARG002
        """All that is wanted: no other worker has attempts to make."""
        return Allotment(wanted, 0.0)

    async def claim_probe(self, provider: str, pause: float, longest: float) -> float:  # noqa: ARG002
        """It is always this worker's turn."""
        return 0.0

    async def free_probe(self, provider: str) -> None:
        """Nobody else waits for a turn."""

    async def follow(self, now: int, providers: Collection[str]) -> FromOthers:  # noqa: ARG002  # there are none
        """What other workers did: there are none."""
        return FromOthers()

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

    async def _settle(self, batch: Sequence[PendingOperation[sqlite3.Connection, Any]]) -> None:
        await self._write_in(partial(self._transact, batch))

    def _transact(self, batch: Sequence[PendingOperation[sqlite3.Connection, Any]]) -> None:
        started = time.perf_counter()
        error = self._attempt(batch)
        if error is not None:
            for request in batch:
                request.error = self._attempt([request]) if len(batch) > 1 else error
        self._observe(time.perf_counter() - started, len(batch))

    def _attempt(self, batch: Sequence[PendingOperation[sqlite3.Connection, Any]]) -> Exception | None:
        """Run operations in one transaction; return what they, or the disk, failed with.

        What a disk failed to do isn't asked of it again, nor anything else: the journal is of no more use
        until it is opened anew.
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
                checked(path, partial(belong_to, db, service))
            left = checked(path, partial(written, db))
            checked(path, partial(sync_names, path))  # SQLite passes over a failure to do so
            outbox = Outbox(EventWriter(details_field), left)
            threads = Threads(write, blocking or in_thread)
            with closing(checked(path, partial(Presence, path, lock))) as presence:
                journal = SqliteJournal(
                    db, upkeep.namespace_of(db), outbox, observe, threads,
                    path=path, presence=presence, reserve=reserve, last_at=left.last_at,
                    emptied="" if keep_variables else EMPTIED, stop_key=stop_key_of(db),
                )  # fmt: skip
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
