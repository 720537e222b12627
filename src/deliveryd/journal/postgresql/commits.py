"""Commits of this journal: each begins with the renewal of the worker's lease, and is lost with it.

What only reads needs no commit if the lease was renewed a short while ago: it asks whether that is in force.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
import psycopg
from anyio.abc import TaskGroup

from deliveryd.errors import JournalError, JournalFull, JournalUnreachable, JournalUnusable
from deliveryd.journal.base import Recorded
from deliveryd.journal.group_commit import PendingOperation
from deliveryd.journal.journal import Journal
from deliveryd.journal.log import Log, LogTerms
from deliveryd.journal.postgresql.connection import STANDBY, Connected, first_line, is_lost
from deliveryd.journal.postgresql.database import Database
from deliveryd.journal.postgresql.lease import CommitsLost, Lease, Neighbours, halt, release_lease
from deliveryd.journal.sql.db import Db
from deliveryd.model import Transition
from deliveryd.runtime.threads import Blocking
from deliveryd.telemetry.log_events import Event, log

RECONNECT_PAUSE = 0.5
"""Seconds until it is tried again to learn what became of a commit."""

STALLED = 5.0
"""Seconds after which a commit without an answer counts as one of a database that can't be reached."""

LOOKED_EVERY = 1.0
"""Seconds between two looks whether a commit stalls."""

NO_ANSWER = f"a commit has had no answer for {STALLED:.0f} s"
"""The message about it, before the reason."""

EXPLAINED_WITHIN = 5.0
"""Seconds within which the server has to give the reason: it may hang altogether."""

MOST_REPEATS = 5
"""How often a transaction is repeated that met another one's locks in the wrong order, or its changes."""

_FULL = frozenset({"53100", "53200", "53000"})  # disk full, out of memory, insufficient resources
_BEYOND_LIMITS = "54"
"""The class of what the server's limits don't allow, as of a value too long for its index."""

_REPEATABLE = frozenset({"40001", "40P01"})
_GRANT_CREATE = "; let the user that connects own the database, or GRANT CREATE ON DATABASE TO it"
_GRANT_OWNER = "; GRANT the owner of its tables TO the user that connects"

T = TypeVar("T")
Pending = PendingOperation[Db, Any]


class Look(Generic[T]):
    """An operation that changes nothing, and each statement of which is right by itself."""

    def __init__(self, operation: Callable[[Db], T]) -> None:
        self._operation = operation

    def __call__(self, db: Db) -> T:
        return self._operation(db)


class StepsOfCaller:
    """Steps to record for one caller: those of several are recorded at once."""

    def __init__(
        self, change: Callable[[Db, Sequence[Transition]], Recorded], steps: Sequence[Transition]
    ) -> None:
        self.change = change
        self.steps = steps

    def __call__(self, db: Db) -> Recorded:
        return self.change(db, self.steps)


class ChangedMeanwhile(JournalError):
    """Another worker changed what was read; the transaction is repeated, and finds it as it is then."""


class CommitInDoubt(Exception):
    """The connection was lost before a COMMIT was answered."""


class Work(NamedTuple):
    """What a journal commits with: its connection, how to make another one, its lease, and where it runs.

    `observe` is called after each batch with its seconds and how many operations it has, but not after looks.
    """

    db: Connected
    connect: Callable[[], Connected]
    lease: Lease
    write: Blocking
    observe: Callable[[float, int], None]


class LeasedCommits(Journal):
    """Commits operations in the name of one worker."""

    def __init__(self, work: Work, own: int, terms: LogTerms) -> None:
        self._database = Database(work.db)
        self._database.enter(own)
        super().__init__(work.write, Log(self._database, own, terms), terms)
        self._db = work.db
        self._connect = work.connect
        self._lease = work.lease
        self._neighbours = Neighbours(work.lease)
        self._observe = work.observe
        self._warnings: list[str] = []
        self._began: float | None = None  # the event loop's time
        self._is_halted = False
        self._watch_warnings(work.db)

    def _forget_uncommitted(self) -> None:
        """Called when a transaction was rolled back: what is remembered of it isn't so."""
        self._database.forget_log()

    async def _why_stalled(self) -> str:
        """Why a commit has no answer, as far as another connection can find out."""
        raise NotImplementedError

    @property
    def full(self) -> bool:
        """Whether something waits for room, or for a database that can't be reached."""
        return super().full or self._is_stalled

    @property
    def is_unreachable(self) -> bool:
        """Whether something waits for a database that can't be reached, or that doesn't answer."""
        return super().is_unreachable or self._is_stalled

    @property
    def _is_stalled(self) -> bool:
        return self._began is not None and anyio.current_time() - self._began > STALLED

    async def run(self) -> None:
        """Commit what waits, and renew the lease, until the journal is closed and nothing waits any more."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._log_stalls, tasks)
            await self._commit_what_waits()
            tasks.cancel_scope.cancel()
        await self._write_in(self._end)

    async def _log_stalls(self, tasks: TaskGroup) -> None:
        """Log when a commit gets no answer, then why, and when it got one: all else waits with it."""
        was_stalled = False
        while True:
            await anyio.sleep(LOOKED_EVERY)
            if self._is_stalled is not was_stalled:
                was_stalled = not was_stalled
                if was_stalled:
                    log(Event.JOURNAL_UNREACHABLE, reason=NO_ANSWER)
                    await self._explain_stall(tasks)
                else:
                    log(Event.JOURNAL_REACHED)

    async def _explain_stall(self, tasks: TaskGroup) -> None:
        """Log why a commit has no answer, if it has none still. The question can't be cancelled."""
        answered, reason = anyio.Event(), "no other connection gets an answer: the server hangs"

        async def ask() -> None:
            nonlocal reason
            reason = await self._why_stalled()
            answered.set()

        tasks.start_soon(ask)
        with anyio.move_on_after(EXPLAINED_WITHIN):
            await answered.wait()
        if self._is_stalled:
            log(Event.JOURNAL_UNREACHABLE, reason=f"{NO_ANSWER}: {reason}")

    def _end(self) -> None:
        if self._broken is None and not self._db.closed:
            with suppress(psycopg.Error):  # then others fence this worker when its lease is over
                release_lease(self._db, self._lease)

    async def _roused(self) -> None:
        interval = self._neighbours.interval
        with anyio.move_on_after(max(interval - self._lease.age, interval / 2)):
            await self._wake.wait()

    async def _keep_up(self) -> None:
        if not self._waiting and not self._closing:
            await self._settle([])

    async def _settle(self, batch: Sequence[Pending]) -> None:
        started = time.perf_counter()
        error = await self._tried(batch)
        alone = len(batch) > 1 and error is not None and not isinstance(error, JournalError)
        for request in batch:
            request.error = await self._tried([request]) if alone else error
        if not _only_looks(batch):
            self._observe(time.perf_counter() - started, len(batch))

    async def _tried(self, batch: Sequence[Pending]) -> Exception | None:
        """Commit a batch; where the answer to a COMMIT was lost, learn what became of it first."""
        self._began = anyio.current_time()
        try:
            while True:
                try:
                    error = await self._write_in(partial(self._attempt, batch))
                except CommitInDoubt:
                    if await self._took_place():
                        return None
                    continue
                if isinstance(error, CommitsLost) and not self._is_halted:
                    await self._halt_all(error)
                return error
        finally:
            self._began = None

    async def _halt_all(self, loss: CommitsLost) -> None:
        """Stop all workers; waits until this can be recorded, since no other worker may have noticed."""
        log(Event.JOURNAL_COMMITS_LOST, count=loss.acknowledged - (loss.found or 0))
        while not self._is_halted:
            try:
                await self._write_in(partial(self._halt, loss))
            except JournalUnreachable:
                await anyio.sleep(RECONNECT_PAUSE)

    def _halt(self, loss: CommitsLost) -> None:
        db = self._connected()
        try:
            halt(db, loss)
        except psycopg.Error as error:
            if is_lost(error):
                db.close()
                raise JournalUnreachable(str(error)) from error
        self._is_halted = True  # or it isn't this journal at all, and it can't be recorded in it

    async def _took_place(self) -> bool:
        """Whether the commit in doubt took place; waits until the database can be asked."""
        while True:
            try:
                return await self._write_in(self._look_up_commit)
            except JournalUnreachable as error:
                if self._closing:  # as after a crash
                    self._broken = JournalError(str(error))
                    return False
                await anyio.sleep(RECONNECT_PAUSE)
            except JournalError as error:
                self._broken = error
                return False

    def _look_up_commit(self) -> bool:
        db = self._connected()
        try:
            took_place = self._lease.took_place(db)
        except psycopg.Error as error:
            raise JournalUnreachable(str(error)) from error
        if took_place:
            self._lease.note_commit()
        else:
            self._forget_uncommitted()
        return took_place

    def _attempt(self, batch: Sequence[Pending]) -> Exception | None:
        """Run operations in one transaction; return what they, or the database, failed with."""
        error: Exception | None = None
        for _ in range(MOST_REPEATS):
            error = self._attempt_once(batch)
            if not _is_repeatable(error):
                return self._judged(error) if isinstance(error, psycopg.Error) else error
        if isinstance(error, psycopg.OperationalError):
            return JournalUnreachable("the database's locks are contended")
        return self._judged(error) if isinstance(error, psycopg.Error) else error

    def _attempt_once(self, batch: Sequence[Pending]) -> Exception | None:
        if self._broken is not None:
            return self._broken
        try:
            db = self._connected()
            if _only_looks(batch) and self._lease.age < self._neighbours.interval / 2:
                self._lease.check(db)
                self._run(batch)
                return None
            db.execute("BEGIN")
            self._lease.renew(db)
            if self._neighbours.is_due:
                self._neighbours.look(db)
            self._run(batch)
        except Exception as error:  # raised where the operation was asked for
            self._forget_uncommitted()
            self._roll_back()
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                self._db.close()  # the next one leads to a server that takes writes
            is_final = isinstance(error, JournalError) and not isinstance(error, ChangedMeanwhile)
            return self._judged(error) if is_final else error
        return self._committed(db)

    def _run(self, batch: Sequence[Pending]) -> None:
        """Run operations in the transaction that is open; looks may be in none."""
        for group in _grouped(batch):
            first = group[0].operation
            if isinstance(first, StepsOfCaller):
                changes = [each.operation for each in group if isinstance(each.operation, StepsOfCaller)]
                for request, result in zip(group, _recorded(self._database, changes), strict=True):
                    request.result = result
            else:
                group[0].result = first(self._database)

    def _committed(self, db: Connected) -> Exception | None:
        """Commit. A COMMIT that was cancelled while it waited for a standby succeeds with a warning."""
        self._warnings.clear()
        try:
            db.execute("COMMIT")
        except psycopg.Error as error:
            if is_lost(error) or db.broken:
                raise CommitInDoubt from error
            self._forget_uncommitted()
            self._roll_back()
            return error
        self._lease.note_commit()
        if self._warnings:
            return self._judged(
                JournalError(f"a commit isn't known to be on the standby: {self._warnings[0]}")
            )
        return None

    def _roll_back(self) -> None:
        with suppress(psycopg.Error):
            self._db.execute("ROLLBACK")
        if self._db.broken:
            self._db.close()

    def _connected(self) -> Connected:
        """The connection, made again if it was lost. Raises JournalUnreachable."""
        if self._db.closed:
            self._db = self._connect()
            self._database = Database(self._db)
            self._neighbours.note_connected()
            self._watch_warnings(self._db)
        return self._db

    def _watch_warnings(self, db: Connected) -> None:
        def note(diagnostic: psycopg.errors.Diagnostic) -> None:
            if diagnostic.severity_nonlocalized == "WARNING":
                self._warnings.append(diagnostic.message_primary or "")

        db.add_notice_handler(note)

    def _judged(self, error: Exception) -> Exception:
        """The error as callers get it; one that another attempt won't mend is the end of this journal.

        A value that the tables refuse is the fault of the operation alone.
        """
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError) or _is_beyond_limits(error):
            return error
        failure = translated(error) if isinstance(error, psycopg.Error) else error
        if isinstance(failure, JournalError) and not isinstance(failure, JournalFull):
            self._broken = failure
        return failure


def _grouped(batch: Sequence[Pending]) -> Iterator[Sequence[Pending]]:
    """Operations one by one, but steps that follow one another together, each message at most once."""
    group: list[Pending] = []
    ids: set[int] = set()
    for request in batch:
        steps = request.operation.steps if isinstance(request.operation, StepsOfCaller) else ()
        mine = {step.entry.id for step in steps}
        if group and (not isinstance(request.operation, StepsOfCaller) or not ids.isdisjoint(mine)):
            yield group
            group, ids = [], set()
        if isinstance(request.operation, StepsOfCaller):
            group.append(request)
            ids |= mine
        else:
            yield [request]
    if group:
        yield group


def _recorded(db: Db, changes: Sequence[StepsOfCaller]) -> list[Recorded]:
    """Record the steps of several callers; each is told which of its messages are settled."""
    done = changes[0].change(db, [step for change in changes for step in change.steps])
    settled, refused = set(done.settled), set(done.counted.refused)
    found = []
    for each in changes:
        ids = [step.entry.id for step in each.steps]
        counted = done.counted._replace(refused=refused.intersection(ids))
        found.append(Recorded(settled.intersection(ids), (), counted))
    found[0] = found[0]._replace(effects=done.effects)
    return found


def _only_looks(batch: Sequence[Pending]) -> bool:
    """Whether nothing in a batch changes anything; one without operations renews the lease."""
    return bool(batch) and all(isinstance(each.operation, Look) for each in batch)


def _is_repeatable(error: Exception | None) -> bool:
    """Whether another attempt finds things as they are by then."""
    if isinstance(error, psycopg.Error):
        return error.sqlstate in _REPEATABLE
    return isinstance(error, ChangedMeanwhile)


def _is_beyond_limits(error: Exception) -> bool:
    """Whether a value is longer than the server can hold where it belongs."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] == _BEYOND_LIMITS


def translated(error: psycopg.Error) -> JournalError:
    """The error as a journal's, while it works."""
    said = first_line(error)
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        said += f"; {STANDBY}"
    if is_lost(error):
        return JournalUnreachable(f"the journal's database can't be reached: {said}")
    if error.sqlstate in _FULL:
        return JournalFull(f"there is no room left for the journal's database: {said}")
    return JournalUnusable(f"the journal's database can't be used any more: {said}")


def translated_at_opening(error: psycopg.Error) -> JournalError:
    """The same before anything is recorded: a journal that couldn't be used yet, and what its user lacks."""
    failure = translated(error)
    if not isinstance(failure, JournalUnusable):
        return failure
    said = first_line(error)
    text = f"the journal's database can't be used: {said}"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        text += _GRANT_CREATE if " database " in said else _GRANT_OWNER
    return JournalUnusable(text)


# Nothing of another user's session is visible but its number and user, unless the role may read statistics.
_BLOCKERS = """
SELECT a.pid, a.usename, nullif(a.application_name, ''), a.state,
    extract(epoch FROM clock_timestamp() - a.xact_start)::int,
    (SELECT string_agg(DISTINCT c.relname, ', ' ORDER BY c.relname) FROM pg_locks l
        JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
            AND c.relnamespace = current_schema()::regnamespace
        WHERE l.pid = a.pid AND l.granted AND l.mode <> 'AccessShareLock')
FROM pg_stat_activity a WHERE a.pid = ANY(pg_blocking_pids(%s::int4)) ORDER BY a.xact_start, a.pid
"""


def blocked_by(db: Connected, pid: int) -> str | None:
    """Return which session holds the lock that a session waits for, and on which tables; None: none does."""
    rows = db.execute(_BLOCKERS, (pid,)).fetchall()
    if not rows:
        return None
    blocker, user, program, state, seconds, tables = rows[0]
    known = [f"user {user}", program, state, None if seconds is None else f"transaction of {seconds} s"]
    others = "" if len(rows) == 1 else f" and {len(rows) - 1} others"
    return (
        f"session {blocker} ({', '.join(each for each in known if each)}){others} holds a lock on"
        f" {tables or 'its rows'}: end its transaction, or SELECT pg_terminate_backend({blocker})"
    )
