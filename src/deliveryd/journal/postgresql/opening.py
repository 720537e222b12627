"""Opens the journal: the schema, and a lease of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from functools import partial
from typing import TypeVar

import anyio
import psycopg

from deliveryd.errors import JournalError
from deliveryd.journal.log import Log, LogTerms
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.commits import (
    LOOKED_EVERY,
    STALLED,
    Work,
    blocked_by,
    translated_at_opening,
)
from deliveryd.journal.postgresql.connection import (
    Connected,
    DatabaseClock,
    connect_to_read,
    connect_to_write,
    longest_idle,
)
from deliveryd.journal.postgresql.database import Database
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.lease import Lease, begin_work, boot_time, live_workers, own_name
from deliveryd.journal.postgresql.logs import FirstLog, last_commit, move_due_times, take_first
from deliveryd.journal.postgresql.schema import lock_schema, prepare_schema
from deliveryd.journal.sql import own_values
from deliveryd.journal.sql.outbox import EventWriter
from deliveryd.journal.sql.provider_ids import IdsInOneIndex
from deliveryd.journal.sql.statements import EMPTIED
from deliveryd.model import STEP, Clock, WallClock
from deliveryd.runtime.threads import Blocking, in_thread, own_thread
from deliveryd.telemetry.log_events import Event, log

T = TypeVar("T")

NOT_OPENED = "the journal can't be opened yet"
"""The message about a lock, before its holder."""

LEASE = 20.0
"""Seconds after which a worker that commits nothing may be fenced."""


@asynccontextmanager
async def open_shared_journal(
    source: JournalDatabase,
    *,
    details_field: str = "details",
    observe: Callable[[float, int], None] = lambda _s, _n: None,
    blocking: Blocking | None = None,
    keep_variables: bool = False,
    lease: float = LEASE,
    service: str | None = None,
    clock: Clock | None = None,
    boot_time: Callable[[], float] = boot_time,
) -> AsyncIterator[PostgresqlJournal]:
    """Open the journal as a worker of its own, and release its lease when the block ends.

    Other workers may have it open at the same time. What ended ones left is adopted by `recover` and
    `follow`.
    `lease` is this worker's own, in seconds, by the clock `boot_time`, which can't be set. `clock` stands
    for the database's; None: the server's own. The other parameters are as for a journal in SQLite. Raises
    JournalError when the database can't be used.
    """
    async with nullcontext(blocking) if blocking is not None else own_thread("journal") as write:
        connect = partial(connect_to_write, source, longest_idle(lease))
        db = await write(connect)
        journal: PostgresqlJournal | None = None
        try:
            holder = partial(_lock_holder, source, db.info.backend_pid)
            opened = partial(_opened, write, blocking or in_thread, holder)
            if await opened(partial(prepare_schema, db)):
                log(Event.JOURNAL_CREATED, reason=f"the database {source.name} held none")
            at, database_clock = (clock or WallClock()).now(), DatabaseClock(clock)
            begin = partial(begin_work, db, lease, at, boot_time, database_clock, service=service)
            mine = await opened(begin)
            others = await opened(partial(_others, db, mine.worker))
            log(Event.JOURNAL_JOINED, worker=own_name(), workers=others)
            terms = await opened(partial(_terms, db, details_field, keep_variables=keep_variables))
            own = await opened(partial(_first_log, db, mine, terms))
            again = partial(
                open_shared_journal,
                source,
                details_field=details_field,
                observe=observe,
                blocking=blocking,
                keep_variables=keep_variables,
                lease=lease,
                clock=clock,
                boot_time=boot_time,
            )
            work, read = Work(db, connect, mine, write, observe), partial(connect_to_read, source)
            make = partial(PostgresqlJournal, work, own, terms, read, blocking or in_thread)
            make = partial(make, clock=clock, under_next_lease=again)
            journal = await opened(make)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(journal.run)
                try:
                    yield journal
                finally:
                    journal.stop()
        finally:
            (db if journal is None else journal).close()


def _terms(db: Connected, details_field: str, *, keep_variables: bool) -> LogTerms:
    namespace = own_values.namespace_of(Database(db))
    return LogTerms(EventWriter(details_field), namespace, "" if keep_variables else EMPTIED, IdsInOneIndex())


def _first_log(connection: Connected, lease: Lease, terms: LogTerms) -> FirstLog:
    with connection.transaction():
        lock_schema(connection)
        number, holder = take_first(connection, lease.worker)
        db = Database(connection)
        db.enter(number)
        now, last = lease.database_clock.now(connection), last_commit(connection, holder)
        back = 0 if last is None or last.at - now < STEP else last.at - now
        if back:
            move_due_times(db, Log(db, number, terms), back, now)
        return FirstLog(number, None if last is None else back)


def _others(db: Connected, worker: int) -> list[str]:
    return [each.name for each in live_workers(db) if each.id != worker]


async def _opened(
    write: Blocking, read: Blocking, lock_holder: Callable[[], str | None], work: Callable[[], T]
) -> T:
    """Work in the journal's thread; log who holds a lock that it waits for, and when it got it."""
    is_logged = False
    results: list[T] = []
    failure: Exception | None = None

    async def log_lock() -> None:
        nonlocal is_logged
        await anyio.sleep(STALLED)
        while not is_logged:
            if (holder := await read(lock_holder)) is not None:
                log(Event.JOURNAL_UNREACHABLE, reason=f"{NOT_OPENED}: {holder}")
                is_logged = True
            await anyio.sleep(LOOKED_EVERY)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log_lock)
        try:
            results.append(await write(partial(_as_told, work)))
        except Exception as error:  # raised below: from here it would be in a group
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if is_logged:
        log(Event.JOURNAL_REACHED)
    return results[0]


def _lock_holder(source: JournalDatabase, pid: int) -> str | None:
    """Which session holds the lock that a session waits for; None: none does, or it can't be asked."""
    with suppress(psycopg.Error, JournalError), closing(connect_to_read(source)) as db:
        return blocked_by(db, pid)
    return None


def _as_told(work: Callable[[], T]) -> T:
    """Work, with the database's errors as JournalError."""
    try:
        return work()
    except psycopg.Error as error:
        raise translated_at_opening(error) from error
