"""Several workers of one journal in PostgreSQL, in one process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg
import pytest

from deliveryd.journal.base import FromOthers
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, Decided, ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import connect_to_write
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.lease import boot_time, fence, live_workers
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
from journal.samples import NOW, decide_on
from support.patience import PATIENCE
from support.postgres import new_database

SMS = ["sms"]


class BootClock:
    """Seconds that go on when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def empty_database() -> JournalDatabase:
    """An empty database of a real PostgreSQL; the test is skipped where there is none."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


@asynccontextmanager
async def worker(
    source: JournalDatabase, providers: Sequence[str] = SMS, clock: Callable[[], float] = boot_time
) -> AsyncIterator[PostgresqlJournal]:
    """A worker that has started."""
    async with open_shared_journal(source, lease=20.0, boot_time=clock) as journal:
        await journal.recover(NOW, providers)
        yield journal


@asynccontextmanager
async def two_workers(source: JournalDatabase) -> AsyncIterator[tuple[PostgresqlJournal, PostgresqlJournal]]:
    """Two workers that know of each other."""
    async with worker(source) as one, worker(source) as other:
        await one.follow(NOW, SMS)
        yield one, other


def end_worker(source: JournalDatabase, index: int = 0) -> None:
    """Fence a worker, by its place among those that are there."""
    with connect_to_write(source, 9) as db:
        assert fence(db, live_workers(db)[index])


async def adopted_by(journal: Journal, providers: Sequence[str] = SMS) -> FromOthers:
    """Follow the others until something of theirs is adopted, as the line does."""
    while True:
        found = await journal.follow(NOW + 2, providers)
        if found.adopted is not None:
            return found
        await anyio.sleep(0.1)


async def ordered(
    by: Journal, verb: Action, kind: ItemKind, *keys: object, followed_by: Sequence[Journal]
) -> tuple[Decided, list[FromOthers]]:
    """Have an order carried out while these follow one another's doings; return also what they found."""
    found: list[FromOthers] = []
    decided: list[Decided] = []

    async def decide() -> None:
        decided.append(await decide_on(by, verb, kind, *keys))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(decide)
        while not decided:
            found += [await each.follow(NOW + 9, SMS) for each in followed_by]
    return decided[0], found


async def told(source: JournalDatabase, id_: int) -> list[str]:
    """The statuses of a message, in the order in which they happened."""
    (life,) = await anyio.to_thread.run_sync(database_reader(source).lives, [id_])
    return [event.status for event in life.events]


async def sound(source: JournalDatabase) -> None:
    """The journal's audit finds nothing, and no message is missing."""
    audit = await anyio.to_thread.run_sync(database_reader(source).audit)
    assert not audit.findings
    assert audit.account.gap == 0


def query(source: JournalDatabase, statement: str) -> list[tuple[Any, ...]]:
    """The rows that a statement finds in the database."""
    with psycopg.connect(source.url, autocommit=True) as db:
        return db.execute(statement.encode()).fetchall()


async def beside(*works: Callable[[], Awaitable[object]]) -> list[Any]:
    """Do all of these at once; return what each one gave."""
    found: list[Any] = [None] * len(works)

    async def work(place: int) -> None:
        found[place] = await works[place]()

    async with anyio.create_task_group() as tasks:
        for place in range(len(works)):
            tasks.start_soon(work, place)
    return found


class Standing:
    """A worker whose thread stands still before a commit."""

    def __init__(self, source: JournalDatabase) -> None:
        self._source = source
        self._reached, self._go_on = threading.Event(), threading.Event()

    def stand_still(self) -> None:
        """Called in the worker's thread: wait, the first time."""
        if not self._reached.is_set():
            self._reached.set()
            self._go_on.wait(PATIENCE)

    async def reached(self) -> None:
        """Return when it stands still."""
        await anyio.to_thread.run_sync(self._reached.wait)

    def go_on(self) -> None:
        """Let it commit."""
        self._go_on.set()

    async def go_on_when_waited_for(self) -> None:
        """Let it commit when somebody waits for its locks."""
        with psycopg.connect(self._source.url, autocommit=True) as look, anyio.fail_after(PATIENCE):
            while look.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is None:
                await anyio.lowlevel.checkpoint()
        self.go_on()


@contextmanager
def standing_before_the_commit(journal: PostgresqlJournal, source: JournalDatabase) -> Iterator[Standing]:
    """Have the worker stand still before it commits what is asked of it next."""
    stands = Standing(source)
    run = journal._run

    def run_and_stand(batch: Sequence[Any]) -> None:
        run(batch)
        if batch:
            stands.stand_still()

    journal._run = run_and_stand  # type: ignore[method-assign]
    try:
        yield stands
    finally:
        journal._run = run  # type: ignore[method-assign]
        stands.go_on()
