"""Sessions of the server: transactions and their statements, waiting for locks, and deadlocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from psycopg import errors
from psycopg.pq import TransactionStatus

from memory_postgres.changes import Plan
from memory_postgres.commands import command
from memory_postgres.results import NOTHING, Result
from memory_postgres.running import Run
from memory_postgres.schema import definitions
from memory_postgres.statements import read
from memory_postgres.tables import Definition
from memory_postgres.versions import UPDATE, Snapshot, Transaction

if TYPE_CHECKING:
    from memory_postgres.database import Database, Server


class _Schema:
    """The tables of a database by the text that made them, which plans are kept for."""

    def __init__(self, tables: dict[str, Definition]) -> None:
        self.tables = tables


@lru_cache(maxsize=8)
def _schema(text: str) -> _Schema:
    return _Schema({each.name: each for each in definitions(text)[0]} if text else {})


@lru_cache(maxsize=4096)
def _plan(schema: str, text: str, doubled: bool) -> Plan:
    return Plan(read(text, doubled=doubled), _schema(schema).tables)


class Session:
    """One connection's side of the server. `stand`: waits until something happened, for so many seconds."""

    def __init__(self, database: Database, stand: Callable[[float | None], None]) -> None:
        self.database = database
        self.server: Server = database.server
        self.pid = self.server.new_pid(self)
        self._stand = stand
        self.lasting = Transaction(self)
        self.transaction: Transaction | None = None
        self._implicit = False
        self._failed = False
        self._savepoints: list[int] = []
        self._command = 0
        self._seen: float | None = None
        self.is_repeatable = False
        self.is_read_only = False
        self.lock_timeout: float | None = None
        self._usual_timeout: float | None = None
        self.is_dead = False
        self.values: Any = None
        """Those that came with the statement."""

    @property
    def status(self) -> TransactionStatus:
        """Where its transaction stands."""
        if self.transaction is None:
            return TransactionStatus.IDLE
        return TransactionStatus.INERROR if self._failed else TransactionStatus.INTRANS

    # statements

    def execute(self, text: str, values: Any) -> Result:
        """Run a statement. Raises what the server raises."""
        if self.is_dead:
            raise errors.AdminShutdown("terminating connection due to administrator command")
        if (run := command(text)) is not None:
            self.values = values
            return run(self) or NOTHING
        if self._failed:
            raise errors.InFailedSqlTransaction("current transaction is aborted")
        implicit = self.transaction is None
        if implicit:
            self.begin()
        try:
            result = self._run(text, values)
        except BaseException:
            if implicit:
                self.roll_back()
            else:
                self._failed = self.transaction is not None
            raise
        if implicit:
            self.commit()
        return result

    def within(self, work: Callable[[Run], Result], *, sees: bool = True) -> Result:
        """Do something else as a statement does it; `sees`: it reads what is there."""
        if self._failed:
            raise errors.InFailedSqlTransaction("current transaction is aborted")
        implicit = self.transaction is None
        if implicit:
            self.begin()
        try:
            result = work(self.new_run() if sees else self._blind_run())
        except BaseException:
            if implicit:
                self.roll_back()
            else:
                self._failed = self.transaction is not None
            raise
        if implicit:
            self.commit()
        return result

    def _run(self, text: str, values: Any) -> Result:
        transaction, database = self.transaction, self.database
        assert transaction is not None
        plan = _plan(database.schema, text, values is not None)
        if plan.writes and self.is_read_only:
            raise errors.ReadOnlySqlTransaction("cannot execute this in a read-only transaction")
        locks = database.locks
        for table in plan.touched:
            holders = locks.get(table)
            if holders is None or transaction not in holders:
                self.hold(transaction, table, 0)
        run = self.new_run()
        database.snapshots[run] = run.snapshot.number
        try:
            rows, count = plan.run(run, values)
        finally:
            database.snapshots.pop(run, None)
        return Result(rows, plan.columns, count)

    def new_run(self) -> Run:
        """The next command of the transaction, with what it sees."""
        assert self.transaction is not None
        database = self.database
        self._command += 1
        if self.is_repeatable:
            if self._seen is None:
                self._seen = database.snapshots[self.transaction] = database.commits
            number = self._seen
        else:
            number = database.commits
        snapshot = Snapshot(
            number, self.transaction, self._command, min(database.active, default=database.next_xid)
        )
        return Run(self, self.transaction, snapshot)

    def _blind_run(self) -> Run:
        assert self.transaction is not None
        return Run(self, self.transaction, Snapshot(0, self.transaction, self._command, 0))

    # transactions

    def repeat(self) -> None:
        """Have the transaction see one snapshot, that of its next statement."""
        self.is_repeatable = True

    def begin(self, *, repeatable: bool = False) -> None:
        """Begin one."""
        if self.transaction is None:
            self.transaction = Transaction(self, began_at=self.database.clock())
            self.is_repeatable = repeatable
            self._command = 0

    def commit(self) -> None:
        """Commit; one that failed is rolled back."""
        transaction = self.transaction
        if transaction is None:
            return
        if self._failed:
            self.roll_back()
            return
        self._forget()
        self.database.commit(transaction)

    def roll_back(self) -> None:
        """Roll back."""
        transaction = self.transaction
        if transaction is not None:
            self._forget()
            self.database.roll_back(transaction)

    def _forget(self) -> None:
        self.database.snapshots.pop(self.transaction, None)
        self.transaction, self._failed, self._savepoints, self._seen = None, False, [], None
        self.is_repeatable = False
        self.lock_timeout = self._usual_timeout

    def save(self) -> None:
        """Set a savepoint."""
        assert self.transaction is not None
        self._savepoints.append(len(self.transaction.undo))

    def release(self) -> None:
        """Forget the latest savepoint."""
        self._savepoints.pop()

    def roll_back_to(self) -> None:
        """Undo what was done since the latest savepoint, and forget that."""
        assert self.transaction is not None
        point = self._savepoints[-1]
        if point:
            self.database.roll_back(self.transaction, point)
        elif self.transaction.undo:
            self._undo_all()
        self._failed = False
        self.release()

    def _undo_all(self) -> None:
        assert self.transaction is not None
        self.transaction.undo.insert(0, ("nothing", None, None))  # type: ignore[arg-type]
        self.database.roll_back(self.transaction, 1)
        self.transaction.undo.clear()

    def set_lock_timeout(self, seconds: float | None, *, local: bool) -> None:
        """How long locks are waited for."""
        self.lock_timeout = seconds
        if not local:
            self._usual_timeout = seconds

    # locks

    def hold(self, holder: Transaction, key: Any, strength: int, *, waits: bool = True) -> bool:
        """Hold a lock that isn't a row's; False where others do, and it isn't waited for."""
        holders = self.database.locks.setdefault(key, {})
        while True:
            others = [
                each
                for each, theirs in holders.items()
                if each.session is not self and theirs + strength >= UPDATE
            ]
            if not others:
                break
            if not waits:
                return False
            self.wait_for(others)
        if holder not in holders:
            holder.held.append(holders)
        holders[holder] = max(strength, holders.get(holder, 0))
        return True

    def wait_for(self, others: Iterable[Transaction]) -> None:
        """Return when transactions are over. Raises DeadlockDetected, LockNotAvailable."""
        assert self.transaction is not None
        mine = self.transaction
        mine.waits_for = frozenset(others)
        try:
            if _reaches(mine.waits_for, mine, self.lasting):
                raise errors.DeadlockDetected("deadlock detected")
            while any(not each.is_over for each in mine.waits_for):
                self._stand(self.lock_timeout)
                if self.is_dead or self.transaction is not mine:
                    raise errors.AdminShutdown("terminating connection due to administrator command")
                if self.lock_timeout is not None and any(not each.is_over for each in mine.waits_for):
                    raise errors.LockNotAvailable("canceling statement due to lock timeout")
        finally:
            mine.waits_for = frozenset()

    def blocking(self, pid: int) -> list[int]:
        """For whom a session waits."""
        session = self.server.sessions.get(pid)
        if session is None or session.transaction is None:
            return []
        return [each.session.pid for each in session.transaction.waits_for if not each.is_over]

    def terminate(self, pid: int) -> bool:
        """End a session."""
        session = self.server.sessions.get(pid)
        if session is None:
            return False
        session.end()
        return True

    def end(self) -> None:
        """The connection is gone: what wasn't committed is rolled back, and no lock is left."""
        if not self.is_dead:
            self.is_dead = True
            self.roll_back()
            self.database.roll_back(self.lasting)
            self.server.sessions.pop(self.pid, None)

    # partitions

    def days(self, table: str) -> set[int]:
        """The days of which there are partitions of a table now."""
        database = self.database
        transaction = self.transaction or self.lasting
        now = Snapshot(database.commits, transaction, self._command + 1, 0)
        return {version.row[1] for version in database.partitions.equal(now, 0, table)}


def _reaches(begin: Iterable[Transaction], *ends: Transaction) -> bool:
    """Whether one waits for another one, directly or not."""
    seen: set[Transaction] = set()
    left = [each for each in begin if not each.is_over]
    while left:
        each = left.pop()
        if each in ends:
            return True
        if each not in seen:
            seen.add(each)
            session = each.session
            waiting = each if each.waits_for or session.transaction is None else session.transaction
            left += [other for other in waiting.waits_for if not other.is_over]
    return False
