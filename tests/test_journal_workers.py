"""Several workers of one journal in PostgreSQL: adoption, order of events, receipts, shared work."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import psycopg
import pytest

from deliveryd import transitions
from deliveryd.errors import IllegalTransition
from deliveryd.journal.base import Account, Doubtful, FromOthers, Journal, PassedDeadlines
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql import deadlines
from deliveryd.journal.postgresql.asking_anew import ask_anew
from deliveryd.journal.postgresql.commits import ChangedMeanwhile
from deliveryd.journal.postgresql.connection import Db, connect_to_read, connect_to_write
from deliveryd.journal.postgresql.following import Counting
from deliveryd.journal.postgresql.halt import own_name
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.lease import Fenced, boot_time, fence, live_workers
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reader import PostgresqlReader
from deliveryd.model import (
    Confirmation,
    Entry,
    Outcome,
    ProgressReport,
    StatusEvent,
    StopChange,
    Transition,
    message_key,
)
from deliveryd.runtime import waits
from deliveryd.states import State
from journal.samples import (
    NOW,
    ONE_SECOND,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    bring_to_wait,
    decide_on,
    deliver_to_sent,
    hand_over,
    make_ready,
    receive_all,
    refuse_first,
    sample_entry,
    sample_message,
    sample_receipt,
    state_counts,
    waiting_events,
)
from memory_postgres import new_database as new_model
from memory_postgres import standing_in
from support.directories import NoPostgres, open_postgres
from support.patience import PATIENCE
from support.postgres import new_database, pass_time

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SMS = ["sms"]
TESTS = Path(__file__).parent


class BootClock:
    """Seconds that go on when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each case runs on a real server and on the one in memory; `real_server`: only on the real one."""
    if "source" in metafunc.fixturenames:
        is_real = metafunc.definition.get_closest_marker("real_server") is not None
        metafunc.parametrize("source", ["postgresql"] if is_real else ["postgresql", "memory"], indirect=True)


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Iterator[JournalDatabase]:
    """An empty database."""
    if request.param == "memory":
        with standing_in():
            yield JournalDatabase(new_model())
        return
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    yield JournalDatabase(url)


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
    async with worker(source) as one, worker(source) as other:
        yield one, other


def end_worker(source: JournalDatabase, index: int = 0) -> None:
    """Fence a worker, by its place among those that are there."""
    with connect_to_write(source, 9) as db:
        assert fence(db, live_workers(db)[index])


async def told(source: JournalDatabase, id_: int) -> list[str]:
    """The statuses of a message, in the order in which they happened."""
    (life,) = await anyio.to_thread.run_sync(PostgresqlReader(source).lives, [id_])
    return [event.status for event in life.events]


async def balanced(journal: Journal) -> None:
    assert (await journal.account()).gap == 0


# adoption

WORKER = """
import sys, anyio
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.lease import Fenced
from deliveryd.journal.postgresql.opening import open_shared_journal
from journal.samples import NOW, attempt_on, accepted_step, begin_attempts
from journal.samples import make_ready, sample_message

async def work():
    async with open_shared_journal(JournalDatabase(sys.argv[1]), lease=1.0) as journal:
        await journal.recover(NOW, ["sms"])
        await make_ready(journal, 1, 2)
        await begin_attempts(journal, attempt_on(2))
        await journal.take([sample_message(3)], [], NOW)
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        try:
            await journal.change([accepted_step(attempt_on(2), "late")])
        except Fenced as error:
            print("fenced", journal.is_broken, flush=True)

try:
    anyio.run(work)
except BaseException as error:
    print(error, flush=True)
"""


async def adopted_by(journal: Journal, providers: Sequence[str] = SMS) -> FromOthers:
    """Follow the others until something of theirs is adopted, as the line does."""
    while True:
        found = await journal.follow(NOW + 2, providers)
        if found.adopted is not None:
            return found
        await anyio.sleep(0.1)


@asynccontextmanager
async def another_process(source: JournalDatabase) -> AsyncIterator[subprocess.Popen[str]]:
    """A worker in a process of its own, with a message in each of the line's states."""
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", WORKER, source.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TESTS,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.real_server
async def test_what_a_killed_worker_left_goes_on_with_another_one(source: JournalDatabase) -> None:
    """What was taken is reported, what was ready waits, and the intent without an outcome is in doubt."""
    async with worker(source) as journal, another_process(source) as process:
        await journal.take([sample_message(4)], [], NOW)
        assert (await journal.follow(NOW, SMS)).adopted is None
        assert await waiting_events(journal) == [(4, "dequeued")]
        os.kill(process.pid, signal.SIGKILL)
        found = (await adopted_by(journal)).adopted
        assert found is not None
        assert [entry.id for entry in found.taken] == [3]
        assert found.doubtful == [Doubtful(attempt_on(2), State.SENDING)]
        assert found.waiting == 1
        assert [entry.id for entry in (await journal.due(NOW + 2, {"": 9, "sms": 9})).entries] == [1]
        assert await waiting_events(journal) == [(3, "dequeued"), (4, "dequeued")]
        await accept_all(journal)
        await journal.change([accepted_step(attempt_on(2), "p2")])
        await balanced(journal)


@pytest.mark.real_server
async def test_a_worker_that_stood_still_for_a_lease_writes_nothing_when_it_goes_on(
    source: JournalDatabase,
) -> None:
    async with worker(source) as journal, another_process(source) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.kill(process.pid, signal.SIGSTOP)
        await adopted_by(journal)
        process.stdin.write("\n")
        process.stdin.flush()
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "fenced True\n"
        assert (await state_counts(journal))[State.SENDING] == 1
        await balanced(journal)


async def test_the_name_of_a_worker_of_whom_nothing_is_left_is_kept_as_long_as_its_messages(
    source: JournalDatabase,
) -> None:
    """An operator wants to know where its log is."""
    async with worker(source) as other:
        async with worker(source) as journal:
            await deliver_to_sent(journal, 1, "p1")
            await accept_all(journal)
        for _ in range(2):  # its row goes with the second look at the latest
            await other.follow(NOW, SMS)
        reader = PostgresqlReader(source)
        with connect_to_write(source, 9) as db:
            assert db.execute("SELECT count(*) FROM worker WHERE id > 0").fetchone() == (1,)
        (life,) = await anyio.to_thread.run_sync(reader.lives, [1])
        assert [event.worker for event in life.events] == [f"{own_name()} (2)"] * 2
        await other.prune(NOW + 1, 9)
        with connect_to_write(source, 9) as db:
            assert db.execute("SELECT count(*) FROM former").fetchone() == (0,)
        (life,) = await anyio.to_thread.run_sync(reader.lives, [1])
        assert [event.worker for event in life.events] == [None] * 2


async def test_a_lease_is_over_by_the_clock_of_who_watches_and_only_while_that_one_can_renew(
    source: JournalDatabase,
) -> None:
    """A watcher that couldn't renew itself ends nobody: perhaps nobody could."""
    here, there = BootClock(), BootClock()
    async with worker(source, clock=there) as still, worker(source, clock=here) as journal:
        await still.take([sample_message(1)], [], NOW)
        await journal.follow(NOW, SMS)
        here.now += 21.0
        for _ in range(3):
            assert (await journal.follow(NOW, SMS)).adopted is None
        adopted = []
        for _ in range(20):
            here.now += 1.0
            adopted.append((await journal.follow(NOW, SMS)).adopted)
        assert [each.taken[0].id for each in adopted if each is not None] == [1]
        with pytest.raises(Fenced, match="took over"):
            await make_ready(still, 2)


async def test_a_restart_of_the_database_ends_no_worker() -> None:
    """After it everybody's counter has stood still for long, by every clock."""
    try:
        context = open_postgres()
        server = context.__enter__()
    except NoPostgres:
        pytest.skip("there is no PostgreSQL here")
    try:
        source = JournalDatabase(server.url)
        here, there = BootClock(), BootClock()
        async with worker(source, clock=here) as one, worker(source, clock=there) as other:
            for journal in (one, other, one):
                await journal.follow(NOW, SMS)
            await anyio.to_thread.run_sync(server.stop)
            here.now += 60.0
            there.now += 60.0
            await anyio.to_thread.run_sync(server.start)
            for _ in range(15):
                here.now += 1.0
                assert (await one.follow(NOW, SMS)).adopted is None
            await make_ready(other, 1)
            assert not other.is_broken
    finally:
        context.__exit__(None, None, None)


BLOCKED = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


@pytest.mark.parametrize("cause", [waits.settings(10), waits.customer(10), waits.DIRECTORY])
async def test_what_waits_for_an_answer_to_a_worker_that_ended_is_asked_for_anew(
    source: JournalDatabase, cause: str
) -> None:
    """Whatever the order of the database's locale: that of en_US disregards spaces."""
    async with worker(source) as other:
        async with worker(source) as one:
            await make_ready(one, 1)
            await one.change([transitions.deferred(sample_entry(1), NOW, NOW + 3600 * ONE_SECOND, cause)])
        await other.follow(NOW, SMS)
        assert [each.id for each in (await other.due(NOW, {"": 9, "sms": 9})).entries] == [1]


@pytest.mark.real_server
async def test_a_worker_is_ended_though_another_one_stands_still_while_it_asks_anew(
    source: JournalDatabase,
) -> None:
    """It holds the row of an earlier end: whoever ends a worker would wait for it in its only line."""
    async with two_workers(source):
        with connect_to_write(source, 9) as stopped, connect_to_write(source, 9) as other:
            stopped.execute("BEGIN")
            ask_anew(stopped)
            other.execute("BEGIN")
            other.execute("SET LOCAL lock_timeout = '5s'")
            ask_anew(other)


@pytest.mark.real_server
async def test_what_a_worker_that_stands_still_has_locked_costs_no_other_one_its_lease(
    source: JournalDatabase,
) -> None:
    """The server ends its transaction early enough, whether the process or the whole machine is gone."""
    lease = 6.0
    has_locked, goes_on = threading.Event(), threading.Event()

    def stand_still(db: Db) -> None:
        db.execute("SELECT 1 FROM worker FOR UPDATE")
        has_locked.set()
        goes_on.wait()

    async with (
        open_shared_journal(source, lease=lease) as stopped,
        open_shared_journal(source, lease=lease) as other,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(stopped._commit, stand_still)
        await anyio.to_thread.run_sync(has_locked.wait)
        began = boot_time()
        await other.take([sample_message(1)], [], NOW)
        took = boot_time() - began
        goes_on.set()
    assert took < 0.8 * lease  # it may have renewed some while before


@pytest.mark.real_server
async def test_of_two_adopters_one_adopts_and_what_it_had_adopted_goes_on_with_the_other(
    source: JournalDatabase,
) -> None:
    async with open_shared_journal(source) as first:
        await make_ready(first, 1)
        await begin_attempts(first, attempt_on(1))
    async with two_workers(source) as (one, other):
        async with open_shared_journal(source) as command:
            await hand_over(command, 2)
        found: list[FromOthers] = []

        async def follow(journal: Journal) -> None:
            found.append(await journal.follow(NOW, SMS))

        with psycopg.connect(source.url) as admin, psycopg.connect(source.url, autocommit=True) as look:
            admin.execute("SELECT 1 FROM worker WHERE ended IS NOT NULL FOR UPDATE")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, one)
                tasks.start_soon(follow, other)
                while look.execute(BLOCKED).fetchone() != (2,):  # both have seen that nobody has it
                    await anyio.lowlevel.checkpoint()
                admin.rollback()
        adopted = [each.adopted for each in found if each.adopted is not None]
        assert [each.reporting for each in adopted] == [[2]]
        end_worker(source)
        left = (await other.follow(NOW, SMS)).adopted
        assert left is not None
        assert left.doubtful == [Doubtful(attempt_on(1), State.SENDING)]
        assert await waiting_events(other) == [(2, "sent")]
        await balanced(other)


async def test_what_is_bound_to_a_provider_is_left_to_who_has_it(source: JournalDatabase) -> None:
    """A doubt at sms goes to the worker that has sms, whoever looks first."""
    async with worker(source, ["email"]) as mail, worker(source, SMS) as text:
        async with worker(source, SMS) as ended:
            await make_ready(ended, 1, 2, 3)
            await begin_attempts(ended, attempt_on(1), attempt_on(2, "email"))
        found = (await mail.follow(NOW, ["email"])).adopted
        assert found is not None
        assert [(each.entry.id, each.state) for each in found.doubtful] == [(2, State.SENDING)]
        found = (await text.follow(NOW, SMS)).adopted
        assert found is not None
        assert [(each.entry.id, each.state) for each in found.doubtful] == [(1, State.SENDING)]
        await text.change([accepted_step(attempt_on(1), "p1")])
        await mail.change([accepted_step(attempt_on(2, "email"), "p2")])
        await balanced(mail)


@pytest.mark.real_server
async def test_a_start_leaves_alone_what_waits_at_a_provider_that_another_worker_has(
    source: JournalDatabase,
) -> None:
    """It is unbound, and what is in doubt there held, when nobody has had the provider for ten minutes."""
    async with worker(source, SMS) as text:
        await bring_to_wait(text, 1, NOW + ONE_SECOND, "sms")
        await bring_in_doubt(text, 2, State.WAITING)
        async with worker(source, ["email"]) as mail:
            assert (await state_counts(mail)) == {State.WAITING: 2}
            assert not (await mail.due(NOW + ONE_SECOND, {"": 9, "email": 9})).entries
            assert (await mail.leave(["sms"], NOW, 9)) == (0, 0)
    async with worker(source, ["email"]) as mail:
        assert (await state_counts(mail)) == {State.WAITING: 2}
    pass_time(source.url, 601)
    async with worker(source, ["email"]) as mail:
        assert (await state_counts(mail)) == {State.WAITING: 1, State.IN_DOUBT: 1}
        assert [each.id for each in (await mail.due(NOW + ONE_SECOND, {"": 9})).entries] == [1]


async def test_a_table_of_workers_stays_small_and_the_account_balanced(source: JournalDatabase) -> None:
    async with worker(source) as journal:
        for number in range(1, 6):
            async with open_shared_journal(source) as command:
                await hand_over(command, number)
            await journal.follow(NOW, SMS)
            await accept_all(journal)
        await journal.follow(NOW, SMS)
        with psycopg.connect(source.url) as admin:
            assert admin.execute("SELECT count(*), sum(taken) FROM worker").fetchone() == (2, 5)
        account = await journal.account()
        assert (account.taken, account.gap) == (5, 0)
        assert [each.status for each in PostgresqlReader(source).lives([3])[0].events] == ["dequeued", "sent"]


# shared work


async def test_due_and_overdue_messages_are_taken_once(source: JournalDatabase) -> None:
    async with two_workers(source) as (one, other):
        await make_ready(one, *range(1, 61))
        steps = [
            Transition(
                sample_entry(id_),
                State.READY,
                State.WAITING,
                NOW,
                NOW,
                waits_for=None if id_ % 2 else "settings 1",
            )
            for id_ in range(1, 61)
        ]
        await one.change(steps)
        taken: list[int] = []

        async def fetch(journal: Journal) -> None:
            for _ in range(10):
                due = await journal.due(NOW, {"": 4})
                overdue = await journal.overdue(NOW, 4)
                taken.extend(entry.id for entry in (*due.entries, *overdue.entries))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fetch, one)
            tasks.start_soon(fetch, other)
        assert sorted(taken) == list(range(1, 61))


async def test_a_message_is_taken_by_one_of_two_workers_that_get_it(source: JournalDatabase) -> None:
    async with two_workers(source) as (one, other):
        new: list[int] = []

        async def take(journal: Journal) -> None:
            new.extend(await journal.take([sample_message(id_) for id_ in range(1, 101)], [], NOW))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, one)
            tasks.start_soon(take, other)
        assert sorted(new) == list(range(1, 101))
        assert (await one.account()).taken == 100


async def test_a_step_of_a_message_that_nobody_owns_and_another_worker_took_is_no_error(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        entry = await bring_in_doubt(one, 1)
        repeat = Transition(entry, State.IN_DOUBT, State.WAITING, NOW, NOW, Outcome("in_doubt"))
        assert (await other.change([repeat])).settled == set()
        assert (await one.change([repeat])).settled == {1}
        assert await state_counts(one) == {State.WAITING: 1}
        assert (await decide_on(one, Action.RESEND, ItemKind.MESSAGE, 1)).skipped


async def test_a_worker_takes_no_step_of_a_message_that_is_in_another_workers_hands(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        await make_ready(one, 1)
        with pytest.raises(IllegalTransition):
            await begin_attempts(other, attempt_on(1))
        await begin_attempts(one, attempt_on(1))


# receipts


async def test_a_receipt_at_the_other_worker_is_told_behind_what_is_reported_here(
    source: JournalDatabase,
) -> None:
    """While `sent` waits, `delivered` goes to the same log; otherwise who received it reports it."""
    async with two_workers(source) as (one, other):
        await hand_over(one, 1, "p1")
        assert await receive_all(other, [sample_receipt("p1")]) == ["matched"]
        assert await waiting_events(other) == []
        assert (await one.follow(NOW, SMS)).events == 1
        assert await waiting_events(one) == [(1, "sent"), (1, "delivered")]
        await deliver_to_sent(one, 2, "p2")
        assert await receive_all(other, [sample_receipt("p2")]) == ["matched"]
        assert await waiting_events(other) == [(2, "delivered")]
        assert await told(source, 1) == await told(source, 2) == ["dequeued", "sent", "delivered"]
        await balanced(one)


async def test_a_message_that_a_kept_receipt_ends_frees_its_place_though_another_worker_reports_it(
    source: JournalDatabase,
) -> None:
    """Earlier events of it wait in the log of the worker that had it: this one never hears of the last."""
    async with two_workers(source) as (one, other):
        await make_ready(one, 1)
        await begin_attempts(one, attempt_on(1))
        doubtful, due = attempt_on(1)._replace(doubt=True), NOW + ONE_SECOND
        progress = (StatusEvent(1, "sending", NOW),)
        await one.change(
            [
                Transition(
                    doubtful, State.SENDING, State.WAITING, NOW, due, Outcome("in_doubt"), events=progress
                )
            ]
        )
        (entry,) = (await other.due(due, {"sms": 9})).entries
        arrived = sample_receipt()._replace(reference=message_key(other.namespace, 1, "sms", 1))
        assert await receive_all(other, [arrived]) == ["unmatched"]
        begun = entry.begun("sms", b"12345678", due)
        recorded = await other.change([Transition(begun, State.READY, State.SENDING, due)])
        assert (set(recorded.settled), set(recorded.elsewhere)) == ({1}, {1})
        await one.follow(NOW, SMS)
        assert await waiting_events(one) == [(1, "sending"), (1, "sent"), (1, "delivered")]
        await balanced(one)


async def test_an_event_waits_behind_those_in_an_inbox_whatever_is_settled_in_between(
    source: JournalDatabase,
) -> None:
    """Also when it is made by who has the log, before the inbox was looked at."""
    async with two_workers(source) as (one, other):
        await hand_over(one, 1, "p1")
        progress = ProgressReport("sms", "p1", "enroute", NOW + 7)
        assert [each.result for each in await other.receive([progress])] == ["told"]
        await accept_all(one)
        assert await receive_all(one, [sample_receipt("p1", NOW)]) == ["matched"]
        assert await waiting_events(one) == [(1, "enroute"), (1, "delivered")]
        times = [json.loads(row.body)["timestamp"] for row in await one.outbox(0, 9)]
        assert times == sorted(times)
        assert await told(source, 1) == ["dequeued", "sent", "enroute", "delivered"]


@pytest.mark.parametrize("adopter", ["first", "second"])
async def test_the_outbox_is_read_on_from_an_adopted_log(source: JournalDatabase, adopter: str) -> None:
    """In portions, whether its worker began before or after the adopter; new events follow at once."""
    async with worker(source) as one, worker(source) as other:
        journal, ended = (one, other) if adopter == "first" else (other, one)
        await ended.take([sample_message(id_) for id_ in (1, 2, 3)], [], NOW)
        await journal.take([sample_message(4)], [], NOW)
        end_worker(source, int(adopter == "first"))
        await adopted_by(journal)
        await journal.take([sample_message(5)], [], NOW)
        found: list[int] = []
        last = 0
        while rows := await journal.outbox(last, 2):
            found += [row.message_id for row in rows]
            last = rows[-1].seq
            if len(found) == 4:
                await journal.take([sample_message(6)], [], NOW)
        assert found == [1, 2, 3, 4, 5, 6]


async def test_an_inbox_goes_on_with_its_log_when_that_is_adopted(source: JournalDatabase) -> None:
    async with worker(source) as one:
        async with worker(source) as other:
            await hand_over(one, 1, "p1")
            assert await receive_all(other, [sample_receipt("p1")]) == ["matched"]
            end_worker(source)
            found = await other.follow(NOW, SMS)
            assert (found.events, found.adopted.reporting if found.adopted else None) == (1, [1])
            await other.take([sample_message(2)], [], NOW)
            rows = await other.outbox(0, 9)
            assert [(row.message_id, row.status) for row in rows] == [
                (1, "sent"), (1, "delivered"), (2, "dequeued"),
            ]  # fmt: skip
            await other.accept(rows, NOW)
            assert await waiting_events(other) == []
            await balanced(other)
        assert not one.is_broken


@pytest.mark.real_server
async def test_an_outcome_and_its_receipt_that_missed_each_other_are_matched_by_the_sweep(
    source: JournalDatabase,
) -> None:
    """Both transactions are open at the same time, so neither can see what the other writes."""
    async with two_workers(source) as (one, other):
        await make_ready(one, 1)
        await begin_attempts(one, attempt_on(1))
        with psycopg.connect(source.url) as admin:
            # The outcome has looked for receipts, and has to wait with its events.
            admin.execute("LOCK TABLE event IN EXCLUSIVE MODE")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.change, [accepted_step(attempt_on(1), "p1")])
                blocked = (
                    "SELECT 1 FROM pg_locks l JOIN pg_inherits i ON i.inhrelid = l.relation"
                    " WHERE NOT l.granted AND i.inhparent = 'event'::regclass"
                )
                with psycopg.connect(source.url, autocommit=True) as look:
                    while look.execute(blocked).fetchone() is None:
                        await anyio.lowlevel.checkpoint()
                assert await receive_all(other, [sample_receipt("p1")]) == ["unmatched"]
                early = await other.follow(NOW, SMS)
                assert not early.effects
                admin.rollback()
        effects = [*(await other.follow(NOW, SMS)).effects, *(await one.follow(NOW, SMS)).effects]
        assert [effect.ended for effect in effects] == [(State.DELIVERED,)]
        await one.follow(NOW, SMS)
        assert await waiting_events(one) == [(1, "sent"), (1, "delivered")]


@pytest.mark.real_server
async def test_a_receipt_that_fits_nothing_is_looked_at_until_nothing_can_have_missed_it(
    source: JournalDatabase,
) -> None:
    async with worker(source) as journal:
        assert await receive_all(journal, [sample_receipt("p1")]) == ["unmatched"]
        with psycopg.connect(source.url, autocommit=True) as admin:
            admin.execute("CREATE TABLE busy (id int)")
            swept = "SELECT looks IS NULL FROM unmatched"
            with psycopg.connect(source.url) as slow:
                slow.execute("INSERT INTO busy VALUES (1)")
                for _ in range(3):
                    await journal.follow(NOW, SMS)
                assert admin.execute(swept).fetchone() == (False,)
            with anyio.fail_after(PATIENCE):  # the server's own transactions may be under way
                while admin.execute(swept).fetchone() != (True,):
                    await journal.follow(NOW, SMS)


async def test_two_receipts_for_one_message_at_two_workers_both_count(source: JournalDatabase) -> None:
    """A failure and a delivery: the delivery stays, and nothing fails for it."""
    async with two_workers(source) as (one, other):
        for id_ in range(1, 21):
            await deliver_to_sent(one, id_, f"p{id_}")
        results: list[str] = []

        async def receive(journal: Journal, *, delivered: bool) -> None:
            receipts = [sample_receipt(f"p{id_}", delivered=delivered) for id_ in range(1, 21)]
            results.extend(await receive_all(journal, receipts))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: receive(one, delivered=True))
            tasks.start_soon(lambda: receive(other, delivered=False))
        assert set(results) == {"matched"}
        account = await one.account()
        assert (account.ends, account.gap) == ({State.DELIVERED: 20}, 0)


# what they share


async def test_pauses_stops_and_what_is_down_reach_the_other_worker(source: JournalDatabase) -> None:
    async with two_workers(source) as (one, other):
        await one.stopped()
        await other.stopped()
        await other.follow(NOW, SMS)
        assert (await decide_on(one, Action.PAUSE, ItemKind.CHANNEL, "sms")).done
        assert (await decide_on(one, Action.STOP, ItemKind.RECIPIENT, "sms +4477")).done
        await one.note_down({"sms": NOW})
        found = await other.follow(NOW, SMS)
        assert found.pauses is not None
        assert [pause.name for pause in found.pauses] == ["channel sms"]
        assert [(change.channel, change.stopped) for change in found.stops] == [("sms", True)]
        assert found.down_since == {"sms": NOW}
        found = await other.follow(NOW, SMS)
        assert (found.pauses, found.stops, found.down_since) == (None, (), None)


async def test_the_pause_of_a_forgotten_message_ends_at_the_other_worker_as_well(
    source: JournalDatabase,
) -> None:
    """There it would hold the message for ever that is given the same id later."""
    async with two_workers(source) as (one, other):
        await make_ready(one, 1)
        assert (await decide_on(one, Action.PAUSE, ItemKind.MESSAGE, 1)).done
        await begin_attempts(one, attempt_on(1))
        await one.change([accepted_step(attempt_on(1), "p1")])
        await accept_all(one)
        heard = (await other.follow(NOW, SMS)).pauses
        assert heard is not None
        assert [pause.key for pause in heard] == ["1"]
        assert (await decide_on(one, Action.FORGET_ANYWAY, ItemKind.MESSAGE, 1)).done
        assert (await other.follow(NOW, SMS)).pauses == ()


async def test_what_waits_is_counted_for_all(source: JournalDatabase) -> None:
    clock = BootClock()
    async with worker(source) as one, worker(source, clock=clock) as other:
        await bring_to_wait(one, 1, NOW, "sms")
        clock.now += 2
        assert (await other.follow(NOW, SMS)).waiting == 1
        assert (await other.follow(NOW, SMS)).waiting is None


async def test_a_process_that_stood_still_while_it_counted_counts_again_in_five_minutes(
    source: JournalDatabase,
) -> None:
    """Not only after a multiple of the time for which it stood still."""
    async with open_shared_journal(source) as journal:
        await bring_to_wait(journal, 1, NOW)
    stood_still = 3600.0
    times = iter([0.0, stood_still, stood_still + 299.0, stood_still + 300.0])
    counting = Counting(lambda: connect_to_read(source), times.__next__)
    counts = counting.count()
    assert counts is not None
    assert counts.waiting == 1
    assert [counting.is_due, counting.is_due] == [False, True]
    counting.close()


async def test_listening_time_is_counted_once_and_goes_on_with_another(
    source: JournalDatabase,
) -> None:
    async with worker(source) as other:
        async with worker(source) as one:
            assert (await one.pass_deadlines(5, NOW, SMS, 9)).listened == 5
            assert (await other.pass_deadlines(5, NOW, SMS, 9)).listened == 5
            assert (await one.pass_deadlines(5, NOW, SMS, 9)).listened == 10
        assert (await other.pass_deadlines(7, NOW, SMS, 9)).listened == 10  # `one` may have counted it
        assert (await other.pass_deadlines(7, NOW, SMS, 9)).listened == 17
    async with worker(source) as last:
        assert (await last.pass_deadlines(3, NOW, SMS, 9)).listened == 20


async def test_no_deadline_is_early_where_the_worker_ends_that_counts_the_time(
    source: JournalDatabase,
) -> None:
    """The one that takes over listened for a whole tick, most of which the other one had counted."""
    tick, within = 5 * ONE_SECOND, 4 * ONE_SECOND
    async with worker(source) as other:
        async with worker(source) as one:
            await one.pass_deadlines(tick, NOW, SMS, 9)
            await other.pass_deadlines(tick, NOW, SMS, 9)
            time = (await one.pass_deadlines(tick - ONE_SECOND // 10, NOW, SMS, 9)).listened
            await make_ready(one, 1)
            await begin_attempts(one, attempt_on(1))
            confirmation = Confirmation(time + within, within, failed_next=False)
            await one.change([accepted_step(attempt_on(1), "p1")._replace(confirmation=confirmation)])
        found = await other.pass_deadlines(tick, NOW, SMS, 9)  # a tenth of a second after it was sent
        assert (found.passed, found.next_by) == ({}, time + within)
        assert not (await other.pass_deadlines(within - 1, NOW, SMS, 9)).passed
        assert (await other.pass_deadlines(1, NOW, SMS, 9)).passed == {"sms": 1}


async def test_no_deadline_is_early_where_the_worker_that_counts_the_time_stood_still_for_a_while(
    source: JournalDatabase,
) -> None:
    """It counts two ticks at once then, and the other one's time had fallen behind by nearly as much."""
    tick, tenth = 5 * ONE_SECOND, ONE_SECOND // 10
    async with two_workers(source) as (one, other):
        await one.pass_deadlines(0, NOW, SMS, 9)
        await other.pass_deadlines(tick, NOW, SMS, 9)
        time = (await other.pass_deadlines(tick, NOW, SMS, 9)).listened
        await make_ready(other, 1)
        await begin_attempts(other, attempt_on(1))
        confirmation = Confirmation(time + tenth + tick, tick, failed_next=False)
        await other.change([accepted_step(attempt_on(1), "p1")._replace(confirmation=confirmation)])
        found = await one.pass_deadlines(2 * tick - tenth, NOW, SMS, 9)  # another tenth of a second later
        assert found.next_by is not None
        assert found.next_by - found.listened >= tick - tenth


async def test_a_worker_that_took_over_the_listening_time_isnt_displaced_before_it_counted(
    source: JournalDatabase,
) -> None:
    """That the time stood still before is nothing that it failed to do."""
    tick = 5 * ONE_SECOND
    async with two_workers(source) as (other, third):
        async with worker(source) as one:
            await one.pass_deadlines(tick, NOW, SMS, 9)
            for _ in range(2):
                assert (await third.pass_deadlines(tick, NOW, SMS, 9)).listened == tick
        for journal in (other, third):
            assert (await journal.pass_deadlines(tick, NOW, SMS, 9)).listened == tick
        assert (await other.pass_deadlines(tick, NOW, SMS, 9)).listened == 2 * tick


async def test_what_a_repeated_transaction_listened_counts_once(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the other worker would seem to have listened no more, and be displaced while it counts."""
    tick = 5 * ONE_SECOND
    pass_deadlines = deadlines.pass_deadlines
    repeats = iter([True, True])

    def collide(*values: Any, **options: Any) -> PassedDeadlines:
        passed = pass_deadlines(*values, **options)
        if next(repeats, False):
            raise ChangedMeanwhile
        return passed

    async with two_workers(source) as (one, other):
        await one.pass_deadlines(tick, NOW, SMS, 9)
        monkeypatch.setattr(deadlines, "pass_deadlines", collide)
        assert (await other.pass_deadlines(tick, NOW, SMS, 9)).listened == tick
        assert next(repeats, None) is None
        assert (await one.pass_deadlines(tick, NOW, SMS, 9)).listened == 2 * tick


async def test_a_clock_that_is_put_back_at_one_of_two_workers_moves_no_due_times(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        await bring_to_wait(one, 1, NOW + ONE_SECOND, "sms")
        await other.retime(60 * ONE_SECOND, NOW, 60 * ONE_SECOND)
        assert (await other.due(NOW, {"sms": 9})) == ([], NOW + ONE_SECOND, 0, 0)


async def test_a_worker_whose_clock_is_behind_ends_no_wait_and_no_pause_of_others(
    source: JournalDatabase,
) -> None:
    """It begins a day behind: what waits and what is paused for a time goes by the others' clocks."""
    async with two_workers(source) as (one, _):
        await bring_to_wait(one, 1, NOW + 600 * ONE_SECOND, "sms")
        order = Order(Action.PAUSE, ItemKind.CHANNEL, ("sms",), lasts=7200)
        await one.decide(order, NOW, SMS)
        async with worker(source) as behind:
            yesterday = NOW - 86_400 * ONE_SECOND
            await behind.retime(0, yesterday, 300 * ONE_SECOND)
            await behind.retime_pauses(0, yesterday)
        assert not (await one.due(NOW, {"sms": 9})).entries
        (pause,) = await one.end_pauses(NOW)
        assert pause.until == NOW + 7200 * ONE_SECOND


async def test_a_worker_whose_clock_is_behind_lifts_a_stop_that_another_one_recorded(
    source: JournalDatabase,
) -> None:
    """The provider's instants decide; by that clock the later report would be of the future."""
    stop = StopChange("sms", b"1" * 16, NOW, True, "STOP", "receipt", heard_at=NOW)
    lift = StopChange("sms", b"1" * 16, NOW + 1, False, None, "receipt", heard_at=NOW - 3600 * ONE_SECOND)
    async with two_workers(source) as (one, other):
        await one.receive([], [stop])
        assert await one.stopped() == [("sms", b"1" * 16)]
        await other.follow(NOW, SMS)
        assert [each.result for each in await other.receive([], [lift])] == ["matched"]
        assert await one.stopped() == []


async def test_a_return_is_heard_of_by_a_worker_that_recorded_another_one_on_top_of_it(
    source: JournalDatabase,
) -> None:
    """Its own changed nothing: the recipient had returned, as it didn't know yet."""
    stop = StopChange("sms", b"1" * 16, NOW, True, "STOP", "receipt", heard_at=NOW)
    async with two_workers(source) as (one, other):
        await one.stopped()
        await one.receive([], [stop])
        for journal, later, result in ((other, 1, "matched"), (one, 2, "repeated")):
            lift = StopChange("sms", b"1" * 16, NOW + later, False, None, "receipt", heard_at=NOW + later)
            assert [each.result for each in await journal.receive([], [lift])] == [result]
        last = (await one.follow(NOW, SMS)).stops[-1]
        assert (last.digest, last.stopped) == (b"1" * 16, False)


@pytest.mark.parametrize("stopped", [True, False])
async def test_of_reports_without_an_instant_the_later_one_counts_whatever_the_workers_clocks_say(
    source: JournalDatabase, stopped: bool
) -> None:
    earlier = StopChange("sms", b"1" * 16, NOW, not stopped, None, "receipt", heard_at=NOW, is_dated=False)
    behind = NOW - 300 * ONE_SECOND
    later = StopChange("sms", b"1" * 16, behind, stopped, None, "receipt", heard_at=behind, is_dated=False)
    async with two_workers(source) as (one, other):
        await one.receive([], [earlier])
        assert [each.result for each in await other.receive([], [later])] == ["matched"]
        assert bool(await one.stopped()) is stopped


async def test_the_end_of_another_worker_is_told_once(source: JournalDatabase) -> None:
    async with worker(source) as one:
        async with worker(source):
            assert not (await one.follow(NOW, SMS)).any_ended
        assert (await one.follow(NOW, SMS)).any_ended
        assert not (await one.follow(NOW, SMS)).any_ended


async def test_a_lease_lasts_from_before_its_last_renewal_was_sent(source: JournalDatabase) -> None:
    clock = BootClock()
    async with worker(source, clock=clock) as journal:
        await journal.renew()
        assert journal.outlasts(19.0)
        clock.now += 15.0
        assert journal.outlasts(4.0)
        assert not journal.outlasts(6.0)
        await journal.renew()
        assert journal.outlasts(19.0)


async def test_a_lease_is_renewed_also_where_each_commit_takes_longer_than_a_second(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One renewal is enough: nothing would be taken or reported where a standby is slow."""
    clock, commits = BootClock(), 0
    committed = PostgresqlJournal._committed

    def slowly(journal: PostgresqlJournal, db: psycopg.Connection[Any]) -> Exception | None:
        nonlocal commits
        commits += 1
        clock.now += 1.5
        return committed(journal, db)

    async with worker(source, clock=clock) as journal:
        clock.now += 5.0
        monkeypatch.setattr(PostgresqlJournal, "_committed", slowly)
        with anyio.fail_after(PATIENCE):
            await journal.renew()
        assert commits == 1
        assert journal.outlasts(18.0)


# all at once


class Crowd:
    """Workers that do anything at random. `heard`: what the service was told, by message."""

    def __init__(self, source: JournalDatabase, seed: int) -> None:
        self._source = source
        self._choices = random.Random(seed)
        self._numbers = count(1)
        self._unreported: list[str] = []
        self._refused: list[int] = []
        self.heard: defaultdict[int, list[str]] = defaultdict(list)
        self.taken = 0

    async def work(self, generations: int, more: Sequence[str] = ()) -> None:
        """One worker after the other, each for some steps; `more`: what else they do."""
        names = ("take", "send", "receive", "follow", "report", *more)
        acts = [getattr(self, name) for name in names]
        for _ in range(generations):
            async with worker(self._source) as journal:
                for _ in range(40):
                    await self._choices.choice(acts)(journal)

    async def finish(self) -> Account:
        """Bring all that is left to its end with one more worker."""
        async with worker(self._source) as journal:
            while (await journal.counts()).states:
                await self.send(journal)
            while self._unreported:
                await self.receive(journal)
            for _ in range(4):
                await self.follow(journal)
            while self._refused:
                await self.order(journal)
            while await journal.outbox(0, 1):
                await self.report(journal)
            return await journal.account()

    async def take_again(self, journal: Journal) -> None:
        """The queue hands some out once more."""
        known = sorted(self.heard)
        ids = self._choices.sample(known, min(len(known), 3))
        assert not await journal.take([sample_message(id_) for id_ in ids], [], NOW)

    async def order(self, journal: Journal) -> None:
        """An operator has the event reported once more that was refused last."""
        if self._refused:
            await decide_on(journal, Action.RETRY, ItemKind.EVENT, self._refused.pop())

    async def refuse(self, journal: Journal) -> None:
        rows = await journal.outbox(0, 1)
        if rows and rows[0].status != "dequeued":
            self.heard[rows[0].message_id].append("refused")
            await journal.refuse(rows[0], "400", NOW)
            self._refused.append(rows[0].seq)

    async def take(self, journal: Journal) -> None:
        ids = [next(self._numbers) for _ in range(self._choices.randint(1, 4))]
        new = await journal.take([sample_message(id_) for id_ in ids], [], NOW)
        self.taken += len(new)
        while not all(self.heard[id_] for id_ in ids):
            await self.report(journal)
        await journal.change(
            [Transition(sample_entry(id_), State.READY, State.WAITING, NOW, NOW) for id_ in ids]
        )

    async def send(self, journal: Journal) -> None:
        for entry in (await journal.due(NOW, {"": self._choices.randint(1, 5)})).entries:
            begun = entry.begun("sms", b"12345678", NOW)
            await begin_attempts(journal, begun)
            self._unreported.append(f"p{entry.id}")
            await journal.change([accepted_step(begun, f"p{entry.id}")])

    async def receive(self, journal: Journal) -> None:
        some, self._unreported = self._unreported[:3], self._unreported[3:]
        await receive_all(journal, [sample_receipt(each) for each in some])

    async def follow(self, journal: Journal) -> None:
        await journal.follow(NOW, SMS)

    async def report(self, journal: Journal) -> None:
        rows = await journal.outbox(0, self._choices.randint(1, 20))
        for row in rows:
            self.heard[row.message_id].append(row.status)
        await journal.accept(rows, NOW)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whatever_workers_do_at_once_each_message_is_told_in_order_and_none_is_lost(
    source: JournalDatabase, seed: int
) -> None:
    """Messages change hands, receipts come anywhere and at any time, and workers end in between."""
    crowd = Crowd(source, seed)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(crowd.work, 3)
    account = await crowd.finish()
    assert (account.taken, account.ends, account.gap) == (crowd.taken, {State.DELIVERED: crowd.taken}, 0)
    assert Counter(map(tuple, crowd.heard.values())) == {("dequeued", "sent", "delivered"): crowd.taken}


@pytest.mark.parametrize("followed", ["before", "after", "between"])
async def test_a_message_that_is_retried_elsewhere_while_it_is_handed_out_again_is_known_once(
    source: JournalDatabase, followed: str
) -> None:
    """Its `dequeued` waits here already when the order gives it to this worker."""
    async with two_workers(source) as (one, other):
        await one.take([sample_message(1)], [], NOW)
        await refuse_first(one, NOW)
        await one.take([sample_message(1)], [], NOW)
        assert (await decide_on(other, Action.RETRY, ItemKind.MESSAGE, 1)).done
        known: list[Entry] = []

        async def follow(when: str) -> None:
            if followed == when:
                adopted = (await one.follow(NOW, SMS)).adopted
                known.extend(adopted.taken if adopted is not None else ())

        await follow("before")
        rows = await one.outbox(0, 1)
        await follow("between")
        known += await one.accept(rows, NOW)
        await follow("after")
        for _ in range(2):
            known += await one.accept(await one.outbox(0, 9), NOW)
            await one.follow(NOW, SMS)
        assert [each.id for each in known] == [1]
        assert await state_counts(one) == {State.READY: 1}
        await balanced(one)


@pytest.mark.parametrize("order", [("sent", "delivered"), ("delivered", "sent")])
async def test_refused_events_go_out_again_as_they_happened_whichever_is_retried_first(
    source: JournalDatabase, order: Sequence[str]
) -> None:
    """Both go to the worker in whose log something of the message waits, before that one takes them in."""
    async with two_workers(source) as (one, other):
        await hand_over(one, 1)
        await receive_all(one, [sample_receipt("p1")])
        rows = await one.outbox(0, 9)
        refused = {row.status: row.seq for row in rows}
        for row in rows:
            await one.refuse(row, "400", NOW)
        await one.take([sample_message(1)], [], NOW)
        for status in order:
            assert (await decide_on(other, Action.RETRY, ItemKind.EVENT, refused[status])).done
        assert (await decide_on(other, Action.RETRY, ItemKind.EVENT, refused["sent"])).skipped
        await one.follow(NOW, SMS)
        told = [row.status for row in await one.outbox(0, 9)]
        assert told[-1] == "delivered"
        assert [status for status in told if status != "dequeued"] == ["sent", "delivered"]
        await accept_all(one)
        await balanced(one)


@pytest.mark.parametrize("more", [("take_again",), ("refuse", "order")])
@pytest.mark.parametrize("seed", [1, 2])
async def test_what_is_told_again_leaves_the_latest_status_as_the_last(
    source: JournalDatabase, seed: int, more: Sequence[str]
) -> None:
    """The queue hands messages out again, or operators have refused events reported once more, anywhere."""
    crowd = Crowd(source, seed)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(crowd.work, 3, more)
    account = await crowd.finish()
    assert (account.taken, account.ends, account.gap) == (crowd.taken, {State.DELIVERED: crowd.taken}, 0)
    for id_, statuses in crowd.heard.items():
        assert statuses[-1] == "delivered", (id_, statuses)
        assert {"dequeued", "sent"} <= {*statuses}, (id_, statuses)


@pytest.mark.parametrize("at_first", [True, False])
async def test_events_of_one_instant_are_told_again_in_their_order_at_any_worker(
    source: JournalDatabase, at_first: bool
) -> None:
    """A receipt settles what was in doubt: `sent` and `delivered` have one instant, in one log."""
    async with two_workers(source) as (one, other):
        await make_ready(other, 7)
        tried = attempt_on(7)
        await begin_attempts(other, tried)
        await other.change([transitions.held_in_doubt(tried, NOW + 1, Outcome("in_doubt", "p1", "cut off"))])
        assert await receive_all(other, [sample_receipt("p1")]) == ["settled"]
        refused = {row.status: row.seq for row in await other.outbox(0, 9) if row.status != "delivered"}
        for row in await other.outbox(0, 9):
            if row.status in refused:
                await other.refuse(row, "400", NOW)
        await accept_all(other)
        operator = one if at_first else other
        for status in reversed(refused):
            assert (await decide_on(operator, Action.RETRY, ItemKind.EVENT, refused[status])).done
            await accept_all(operator)
        assert (await told(source, 7))[-1] == "delivered"
        heard = await anyio.to_thread.run_sync(PostgresqlReader(source).audit)
        assert not heard.findings
