"""Retention of the journal in PostgreSQL: weeks under load, and who may hold up whom while a day goes."""

from __future__ import annotations

import time

import anyio
import psycopg
import pytest

from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import connect_to_write
from deliveryd.journal.postgresql.database_clock import DatabaseClock
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.retention import day_to_take_into
from deliveryd.journal.postgresql.schema import DAY, days_there, partition_of
from deliveryd.model import SECOND, Confirmation, StatusEvent, Transition, WallClock
from deliveryd.states import State
from journal.samples import (
    DAYS_LATER,
    NOW,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    deliver_to_sent,
    make_ready,
    receive_all,
    sample_entry,
    sample_message,
    sample_receipt,
    state_counts,
    waiting_events,
)
from retention.sizes import Sizes
from retention.weeks import Weeks, live_through
from support.postgres import new_database, vacuum_often

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TODAY = NOW // (86_400 * 1_000_000)
BLOCKED = (
    "SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE NOT l.granted AND a.application_name = 'deliveryd'"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


@pytest.mark.soak
async def test_sizes_stay_flat_once_days_are_dropped_while_the_load_goes_on(source: JournalDatabase) -> None:
    """Nothing is lost, no take fails, and what has to stay for longer than its day stays.

    `python -m retention` is the same for four weeks, and prints the figures of each day.
    """
    weeks = Weeks(days=7, batches=1, retention=2, workers=2)
    with vacuum_often(source.url):
        sizes, _ = await live_through(source, weeks)
    Sizes.heading()
    for each in sizes:
        each.line()
    before, last = sizes[weeks.retention + 3], sizes[-1]
    assert last.partitions == before.partitions == (weeks.retention + 2) * 4
    assert last.days + last.day_indexes <= 1.15 * (before.days + before.day_indexes)
    assert last.beside <= 1.25 * before.beside


async def test_the_partitions_of_tomorrow_are_there_before_midnight(source: JournalDatabase) -> None:
    """Made a minute after the first take of today, beside the writer: no take ever waits for them."""
    async with open_shared_journal(source) as journal:
        await journal.take([sample_message(1)], [], NOW)
        assert await journal.prune(NOW - DAYS_LATER, 9) == 0
        with psycopg.connect(source.url) as admin:
            assert days_there(admin) == [TODAY, TODAY + 1]


async def test_one_worker_at_a_time_forgets_and_the_others_return_at_once(source: JournalDatabase) -> None:
    async with open_shared_journal(source) as journal:
        await deliver_to_sent(journal, 1)
        with connect_to_write(source, 9) as other, other.transaction():
            other.execute("SELECT pg_advisory_xact_lock(x'646c7672'::int8)")
            assert await journal.prune(DAYS_LATER, 9) == 0
        assert await journal.prune(DAYS_LATER, 9) == 1


async def test_a_message_that_a_receipt_sends_on_meanwhile_is_not_forgotten(source: JournalDatabase) -> None:
    """Another worker's commit comes between the look at the message and the mark: the mark waits for it."""
    async with open_shared_journal(source) as journal:
        await make_ready(journal, 1)
        await begin_attempts(journal, attempt_on(1))
        confirmation = Confirmation(None, None, failed_next=True)
        await journal.change([accepted_step(attempt_on(1), "p1")._replace(confirmation=confirmation)])
        await accept_all(journal)
        pruned: list[int] = []

        async def prune() -> None:
            pruned.append(await journal.prune(DAYS_LATER, 9))

        with psycopg.connect(source.url) as other, psycopg.connect(source.url, autocommit=True) as admin:
            other.execute("UPDATE message SET state = 3, ended_at = NULL WHERE id = 1")
            other.execute("DELETE FROM awaited WHERE id = 1")
            other.execute("INSERT INTO waiting VALUES (1, '', false, 0)")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(prune)
                while admin.execute(BLOCKED).fetchone() is None:
                    await anyio.lowlevel.checkpoint()
                other.commit()
        assert pruned == [0]
        assert await journal.prune(DAYS_LATER, 9) == 0
        assert await state_counts(journal) == {State.WAITING: 1}
        assert len((await journal.due(DAYS_LATER, {"": 9})).entries) == 1
        assert (await journal.account()).gap == 0


async def test_a_receipt_for_a_message_that_is_forgotten_meanwhile_is_not_told_before_what_was_told(
    source: JournalDatabase,
) -> None:
    """At a worker whose clock is behind that of the worker that sent it."""
    async with open_shared_journal(source) as sender:
        await deliver_to_sent(sender, 1)
        async with open_shared_journal(source) as receiver:
            with psycopg.connect(source.url) as other, psycopg.connect(source.url, autocommit=True) as admin:
                other.execute("INSERT INTO meta VALUES ('latest_at', '0')")  # where the clock is behind
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receive_all, receiver, [sample_receipt(at=NOW - 60 * SECOND)])
                    while admin.execute(BLOCKED).fetchone() is None:
                        await anyio.lowlevel.checkpoint()
                    admin.execute("UPDATE retired SET (day, id) = (SELECT day, id FROM message)")
                    other.commit()
                told = admin.execute("SELECT status FROM event ORDER BY body::json->>'timestamp'").fetchall()
    assert told == [("dequeued",), ("sent",), ("delivered",)]


async def test_a_clock_that_is_ahead_forgets_nothing_too_early(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker's wrong clock would have all of them forget, and receipts would fit nothing any more."""
    right = time.time_ns() // 1000
    wrong = right + 30 * DAY
    async with open_shared_journal(source) as journal:
        await journal.take([sample_message(1)], [], right)
        await journal.accept(await journal.outbox(0, 9), right)
        failed = StatusEvent(1, "error", right, details="sms: no such number")
        step = Transition(sample_entry(1), State.READY, State.FAILED, right, events=(failed,))
        await journal.change([step])
        await journal.accept(await journal.outbox(0, 9), right)
        monkeypatch.setattr(WallClock, "now", lambda _clock: wrong)
        assert await journal.prune(wrong - 7 * DAY, 9) == 0
        monkeypatch.setattr(WallClock, "now", lambda _clock: right)
        assert await journal.prune(wrong - 7 * DAY, 9) == 1


@pytest.mark.parametrize("table", ["event", partition_of("event", TODAY)])
async def test_an_event_that_comes_into_a_day_that_goes_is_reported_all_the_same(
    source: JournalDatabase, table: str
) -> None:
    """A transaction that began before the day was forgotten ends afterwards; the drop waits for it."""
    async with open_shared_journal(source) as journal:
        await deliver_to_sent(journal, 1)
        await deliver_to_sent(journal, 2, "p2")
        with psycopg.connect(source.url) as other:
            body = '{"timestamp":"2023-11-14T22:13:20.000000Z","messageId":1,"status":"delivered"}'
            other.execute(
                f"INSERT INTO {table} (seq, day, message_id, status, body)"  # noqa: S608  # a name of ours
                " SELECT (id << 40) + 100, %s, 1, 'delivered', %s FROM worker",
                (TODAY, body),
            )
            assert await journal.prune(DAYS_LATER, 9) == 2
            assert len(days_there(other)) == 2
            other.commit()
        assert await journal.prune(DAYS_LATER, 9) == 0
        with psycopg.connect(source.url) as admin:
            assert TODAY not in days_there(admin)
        assert await waiting_events(journal) == [(1, "delivered")]


async def test_a_step_finds_its_message_though_another_worker_moved_it_and_dropped_its_day(
    source: JournalDatabase,
) -> None:
    """The worker still names the partition of the day on which it took the message."""
    async with open_shared_journal(source) as one, open_shared_journal(source) as other:
        await make_ready(one, 1)
        await make_ready(one, 2)
        await begin_attempts(one, attempt_on(1))
        assert await other.prune(DAYS_LATER, 9) == 0
        with psycopg.connect(source.url) as admin:
            assert TODAY not in days_there(admin)
        await one.change([accepted_step(attempt_on(1), "p1")])
        await begin_attempts(one, attempt_on(2))
        assert await waiting_events(one) == [(1, "sent")]
        assert await receive_all(other, [sample_receipt("p1")]) == ["matched"]
        await one.follow(DAYS_LATER, ["sms"])
        assert await waiting_events(one) == [(1, "sent"), (1, "delivered")]


@pytest.mark.parametrize("table", ["message", partition_of("event", TODAY)])
async def test_a_drop_is_not_even_tried_while_somebody_reads_for_long(
    source: JournalDatabase, table: str
) -> None:
    """What waits for the lock of a drop would hold up everybody else; a take goes on beside the reader."""
    async with open_shared_journal(source) as journal:
        await deliver_to_sent(journal, 1)
        with psycopg.connect(source.url) as reader, psycopg.connect(source.url, autocommit=True) as admin:
            reader.execute(f"TABLE {table}").fetchone()
            since = (
                "SELECT clock_timestamp() - xact_start > interval '1s' FROM pg_stat_activity WHERE pid = %s"
            )
            while admin.execute(since, (reader.info.backend_pid,)).fetchone() != (True,):
                await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(journal.prune, DAYS_LATER, 9)
                for number in range(2, 30):
                    await journal.take([sample_message(number)], [], DAYS_LATER)
                    assert admin.execute(BLOCKED).fetchone() is None
            assert TODAY in days_there(admin)
            reader.rollback()
            await journal.prune(DAYS_LATER, 9)
            assert TODAY not in days_there(admin)


async def test_a_take_into_a_day_that_is_over_is_not_forgotten_with_it(source: JournalDatabase) -> None:
    """Its worker's clock is behind; another one that retires the day can't see what isn't committed yet."""
    async with open_shared_journal(source) as behind, open_shared_journal(source) as right:
        await deliver_to_sent(behind, 1)
        with connect_to_write(source, 9) as taking, taking.transaction():
            day = day_to_take_into(taking, TODAY, DatabaseClock())
            assert await right.prune(DAYS_LATER, 9) == 0
        assert await right.prune(DAYS_LATER, 9) == 1
        with connect_to_write(source, 9) as taking:
            assert day_to_take_into(taking, TODAY, DatabaseClock()) == day + 1


async def test_a_worker_whose_clock_is_behind_takes_into_no_day_that_others_retired(
    source: JournalDatabase,
) -> None:
    async with open_shared_journal(source) as behind, open_shared_journal(source) as right:
        await deliver_to_sent(behind, 1)
        assert await right.prune(DAYS_LATER, 9) == 1
        await deliver_to_sent(behind, 2, "p2")
        account = await right.account()
    assert (account.taken, account.gap, account.ended) == (2, 0, 1)
