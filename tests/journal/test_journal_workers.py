"""Several workers of one journal in PostgreSQL: whose log is whose, what they share, and all at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg
import pytest

from deliveryd import transitions
from deliveryd.delivery.availability import Availability
from deliveryd.delivery.common import Common
from deliveryd.delivery.passed_time import PassedTime, at_next_start
from deliveryd.delivery.pausing import Pausing
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.recovery import recover_line
from deliveryd.delivery.waiting import Waiting
from deliveryd.errors import IllegalTransition
from deliveryd.journal.base import Account, Doubtful, FromOthers
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import connect_to_read
from deliveryd.journal.postgresql.database import Snapshots
from deliveryd.journal.postgresql.following import Counting
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.lease import Fenced, boot_time, own_name
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.postgresql.workers import By, Workers
from deliveryd.journal.sql.db import Db
from deliveryd.model import Confirmation, Outcome, StopChange, Transition
from deliveryd.runtime import waits
from deliveryd.states import State
from journal.samples import (
    DAYS_LATER,
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
from support.directories import NoPostgres, open_postgres
from support.line import common_on, memory_on
from support.patience import PATIENCE
from support.places import TESTS
from support.several_workers import (
    SMS,
    BootClock,
    adopted_by,
    beside,
    empty_database,
    end_worker,
    ordered,
    query,
    sound,
    standing_before_the_commit,
    told,
    two_workers,
    worker,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source() -> JournalDatabase:
    return empty_database()


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
        await sound(source)


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
        await sound(source)


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


async def test_what_a_worker_that_stands_still_has_locked_costs_no_other_one_its_lease(
    source: JournalDatabase,
) -> None:
    """The server ends its transaction early enough, whether the process or the whole machine is gone."""
    lease = 6.0
    has_locked, goes_on = threading.Event(), threading.Event()

    def stand_still(db: Db) -> None:
        db.execute("SELECT 1 FROM main.worker FOR UPDATE")
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


async def test_the_name_of_the_worker_that_has_a_log_or_had_it_last_is_told_with_its_messages(
    source: JournalDatabase,
) -> None:
    """An operator wants to know where its log is."""
    async with worker(source) as other:
        async with worker(source) as ended:
            await deliver_to_sent(ended, 1, "p1")
        await other.follow(NOW, SMS)
        (life,) = await anyio.to_thread.run_sync(database_reader(source).lives, [1])
        assert [event.worker for event in life.events] == [f"{own_name()} (2)"] * 2  # of two in one process


async def test_of_two_that_take_over_a_log_one_has_it_and_after_its_end_the_other(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        async with open_shared_journal(source) as ended:
            await hand_over(ended, 2)
        found: list[FromOthers] = []

        async def follow(journal: Journal) -> None:
            found.append(await journal.follow(NOW, SMS))

        with psycopg.connect(source.url) as admin, psycopg.connect(source.url, autocommit=True) as look:
            admin.execute("SELECT 1 FROM main.log FOR UPDATE")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, one)
                tasks.start_soon(follow, other)
                while look.execute(BLOCKED).fetchone() != (2,):  # both have seen that nobody has it
                    await anyio.lowlevel.checkpoint()
                admin.rollback()
        adopted = [each.adopted for each in found if each.adopted is not None]
        assert [each.reporting for each in adopted] == [[2]]
        is_first = len(one._logs) == 2
        end_worker(source, 0 if is_first else 1)
        left = (await (other if is_first else one).follow(NOW, SMS)).adopted
        assert left is not None
        assert left.reporting == [2]
        await sound(source)


async def test_taking_over_a_log_is_a_restart_with_it(source: JournalDatabase) -> None:
    """What is in doubt, waits, is paused, awaits a receipt, or has an event that isn't accepted."""
    async with worker(source) as other:
        async with worker(source) as ended:
            await bring_in_doubt(ended, 1)
            await make_ready(ended, 2)
            await begin_attempts(ended, attempt_on(2))
            await bring_to_wait(ended, 3, NOW + 60 * ONE_SECOND, "sms")
            await make_ready(ended, 4, 5, 6)
            await decide_on(ended, Action.PAUSE, ItemKind.CHANNEL, "sms")
            (pause,) = await ended.end_pauses(NOW)
            paused = transitions.deferred(
                sample_entry(4), NOW, NOW + 3600 * ONE_SECOND, waits.end_of_pause(pause.kind, pause.key)
            )
            await ended.change([paused])
            await begin_attempts(ended, attempt_on(5))
            awaited = Confirmation(4 * ONE_SECOND, 4 * ONE_SECOND, failed_next=False)
            await ended.change([accepted_step(attempt_on(5), "p5")._replace(confirmation=awaited)])
            await ended.take([sample_message(7)], [], NOW)
        found = (await other.follow(NOW + 2, SMS)).adopted
        assert found is not None
        assert [entry.id for entry in found.taken] == [7]
        assert {(each.entry.id, each.state) for each in found.doubtful} == {
            (1, State.IN_DOUBT),
            (2, State.SENDING),
        }
        assert (found.waiting, sum(found.paused.values())) == (2, 1)
        assert (found.reporting, [each.in_order for each in found.ended]) == ([5], [True])
        assert [entry.id for entry in (await other.due(NOW + 2, {"": 9, "sms": 9})).entries] == [6]
        assert await waiting_events(other) == [(5, "sent"), (7, "dequeued")]
        await accept_all(other)
        passed = [await other.pass_deadlines(2 * ONE_SECOND, NOW, SMS, 9) for _ in range(3)]
        assert [dict(each.passed) for each in passed] == [{}, {}, {"sms": 1}]
        await sound(source)


async def recovered(journal: Journal, clock: ServerClock) -> Common:
    """What a line shares that has recovered."""
    common = common_on(journal, memory_on(journal, clock))
    await recover_line(common, {}, Availability(common, {}, {}))
    return common


class ServerClock:
    """The database's clock, which a test sets."""

    def __init__(self) -> None:
        self.instant = NOW
        self.gone = 0

    def now(self) -> int:
        return self.instant

    def elapsed(self) -> int:
        return self.gone

    def go_on(self, microseconds: int) -> None:
        """Let time pass."""
        self.instant += microseconds
        self.gone += microseconds


@pytest.mark.parametrize("by", ["a worker that runs", "a start", "a start after a command"])
async def test_what_is_taken_over_is_due_in_time_though_the_clock_was_put_back_since(
    source: JournalDatabase, by: str
) -> None:
    """A retry waits for as long as it should, also if nothing was reported while the clock was ahead."""
    days, clock = 8 * 86_400 * ONE_SECOND, ServerClock()
    open_journal = partial(open_shared_journal, source, clock=clock)
    async with open_journal() as ended, open_journal() as neighbour:
        await ended.recover(NOW, SMS)
        await make_ready(ended, 1)
        await accept_all(ended)
        clock.instant = NOW + days
        if by == "a worker that runs":
            await neighbour.recover(NOW + days, SMS)
        step = Transition(sample_entry(1, provider="sms"), State.READY, State.WAITING, NOW, NOW + days + 5)
        await ended.change([step])
        end_worker(source)
        clock.instant = NOW
        async with AsyncExitStack() as stack:
            if by == "a worker that runs":
                adopter = neighbour
                assert (await adopter.follow(NOW, SMS, lambda: days)).adopted is not None
                await adopter.retime(days, lambda: NOW, days)
            else:
                if by == "a start after a command":
                    async with open_journal():
                        pass
                adopter = await stack.enter_async_context(open_journal())
                await adopter.recover(NOW, SMS)
            found = await adopter.due(NOW, {"": 9, "sms": 9})
            assert (found.entries, found.next_due) == ([], NOW + 5)


@pytest.mark.parametrize("step", [-3600 * ONE_SECOND, 3600 * ONE_SECOND])
@pytest.mark.parametrize("noticed", ["before", "afterwards", "by the line first"])
async def test_what_is_taken_over_is_moved_by_what_the_clock_was_set_and_only_once(
    source: JournalDatabase, step: int, noticed: str
) -> None:
    """By the steps that the adopter noticed after it saw the other one commit, and by those that it will."""
    clock, boot = ServerClock(), BootClock()
    wait = 600 * ONE_SECOND

    def pass_time(seconds: int) -> None:
        boot.now += seconds
        clock.instant += seconds * ONE_SECOND

    open_journal = partial(open_shared_journal, source, lease=20.0, clock=clock, boot_time=boot)
    async with open_journal() as ended, open_journal() as adopter:
        await ended.recover(NOW, SMS)
        await adopter.recover(NOW, SMS)
        await make_ready(ended, 1)
        await accept_all(ended)
        await adopter.follow(NOW, SMS)
        step_ = Transition(sample_entry(1, provider="sms"), State.READY, State.WAITING, NOW, NOW + wait)
        await ended.change([step_])
        await adopter.follow(NOW, SMS)
        end_worker(source)
        pass_time(30)
        clock.instant += step
        ahead = -step if noticed == "by the line first" else 0
        if noticed == "before":
            await adopter.retime(-step, clock.now, wait)
        assert (await adopter.follow(clock.instant, SMS, lambda: ahead)).adopted is not None
        if noticed != "before":
            await adopter.retime(-step, clock.now, wait)
        due = await adopter.due(clock.instant, {"": 9, "sms": 9})
        assert (due.entries, due.next_due) == ([], clock.instant + wait - 30 * ONE_SECOND)


@pytest.mark.parametrize("step", [-3600 * ONE_SECOND, 3600 * ONE_SECOND, 0])
async def test_what_a_worker_leaves_in_order_is_moved_by_what_the_adopter_has_to_follow(
    source: JournalDatabase, step: int
) -> None:
    """The adopter stood still meanwhile, so it saw nothing of the last commits, and not when they were."""
    clock, boot, wait = ServerClock(), BootClock(), 600 * ONE_SECOND
    open_journal = partial(open_shared_journal, source, lease=20.0, clock=clock, boot_time=boot)
    async with open_journal() as adopter:
        await adopter.recover(NOW, SMS)
        async with open_journal() as ended:
            await ended.recover(NOW, SMS)
            await adopter.follow(NOW, SMS)
            await make_ready(ended, 1)
            await accept_all(ended)
            await adopter.follow(NOW, SMS)
            boot.now += 10
            clock.instant += 10 * ONE_SECOND
            due_at = clock.instant + wait
            step_ = Transition(
                sample_entry(1, provider="sms"), State.READY, State.WAITING, clock.instant, due_at
            )
            await ended.change([step_])
        clock.instant += step
        assert (await adopter.follow(clock.instant, SMS, lambda: -step)).adopted is not None
        await adopter.retime(-step, clock.now, wait)
        due = await adopter.due(clock.instant, {"": 9, "sms": 9})
        assert (due.entries, due.next_due) == ([], clock.instant + wait)


@pytest.mark.parametrize("outage", [0, 30, 3600])
async def test_the_time_that_the_database_stood_still_is_no_step_of_its_clock(
    source: JournalDatabase, outage: int
) -> None:
    """The last commit of a worker that died meanwhile is seen late: its waits don't begin anew for that."""
    clock, boot, wait = ServerClock(), BootClock(), 30 * ONE_SECOND

    def pass_time(seconds: int) -> None:
        boot.now += seconds
        clock.instant += seconds * ONE_SECOND

    open_journal = partial(open_shared_journal, source, lease=20.0, clock=clock, boot_time=boot)
    async with open_journal() as ended, open_journal() as adopter:
        await ended.recover(NOW, SMS)
        await adopter.recover(NOW, SMS)
        for _ in range(5):
            pass_time(1)
            await ended.follow(clock.instant, SMS)
            await adopter.follow(clock.instant, SMS)
        due_at = clock.instant + wait
        await bring_to_wait(ended, 1, due_at, "sms")
        pass_time(outage)
        while (await adopter.follow(clock.instant, SMS)).adopted is None:
            pass_time(1)
        assert query(source, "SELECT due_at FROM main.message") == [(due_at,)]


@pytest.mark.parametrize("step", [-3600 * ONE_SECOND, 3600 * ONE_SECOND])
async def test_what_a_worker_leaves_that_followed_the_clock_at_its_start_is_not_moved(
    source: JournalDatabase, step: int
) -> None:
    """Both began after the clock was set; hours later one ends, and its last commits weren't seen."""
    clock, boot, wait = ServerClock(), BootClock(), 1800 * ONE_SECOND
    open_journal = partial(open_shared_journal, source, lease=20.0, clock=clock, boot_time=boot)
    async with open_journal() as ended, open_journal() as adopter:
        await ended.recover(NOW, SMS, -step)
        await adopter.recover(NOW, SMS, -step)
        boot.now += 7200
        clock.instant += 7200 * ONE_SECOND
        await ended.follow(clock.instant, SMS)
        await adopter.follow(clock.instant, SMS)
        due_at = clock.instant + wait
        await bring_to_wait(ended, 1, due_at, "sms")
        end_worker(source)
        assert (await adopter.follow(clock.instant, SMS)).adopted is not None
        assert query(source, "SELECT due_at FROM main.message") == [(due_at,)]


@pytest.mark.parametrize("step", [-3600 * ONE_SECOND, 3600 * ONE_SECOND])
async def test_what_is_taken_over_in_the_commit_before_due_times_are_moved_is_moved_with_them(
    source: JournalDatabase, step: int
) -> None:
    """Both wait for one commit, as after an outage of the database."""
    clock, boot, wait = ServerClock(), BootClock(), 600 * ONE_SECOND
    open_journal = partial(open_shared_journal, source, lease=20.0, clock=clock, boot_time=boot)
    async with open_journal() as ended, open_journal() as adopter:
        await ended.recover(NOW, SMS)
        await adopter.recover(NOW, SMS)
        await bring_to_wait(ended, 1, NOW + wait, "sms")
        await adopter.follow(NOW, SMS)
        end_worker(source)
        boot.now += 30
        clock.instant += 30 * ONE_SECOND + step
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(adopter.follow, clock.instant, SMS, lambda: -step)
            tasks.start_soon(adopter.retime, -step, clock.now, wait)
        assert query(source, "SELECT due_at FROM main.message") == [(NOW + wait + step,)]


@pytest.mark.parametrize("step", [-3600 * ONE_SECOND, 3600 * ONE_SECOND])
async def test_a_clock_that_is_set_while_a_start_waits_for_its_database_is_followed_once(
    source: JournalDatabase, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another server takes over meanwhile: a retry and a pause last as long as they should."""
    clock, wait = ServerClock(), 1800 * ONE_SECOND
    open_journal = partial(open_shared_journal, source, clock=clock)
    order = Order(Action.PAUSE, ItemKind.SETTINGS, ("9",), lasts=7200.0)
    async with open_journal() as earlier:
        await (await recovered(earlier, clock)).recorder.decide(order, SMS)
        await bring_to_wait(earlier, 1, NOW + wait)
    look_around = PostgresqlJournal.look_around

    async def look_late(journal: PostgresqlJournal) -> None:
        await look_around(journal)
        clock.instant += step

    monkeypatch.setattr(PostgresqlJournal, "look_around", look_late)
    async with open_journal() as started:
        common = await recovered(started, clock)
        for _ in range(3):
            ahead = common.clock.ahead()
            if followed := common.memory.passed.stepped() or -ahead:
                await common.waiting.follow_clock(followed)
        now = common.clock.in_journal()
        due = await started.due(now, {"": 9, "sms": 9})
        assert (due.entries, due.next_due) == ([], now + wait)
        assert [pause.until for pause in common.memory.pauses.all] == [clock.instant + 7200 * ONE_SECOND]


async def test_what_a_start_takes_over_is_moved_by_what_the_clock_was_set_between_the_runs(
    source: JournalDatabase,
) -> None:
    """Also forward, in its own log and in others; of no worker that begins later."""
    clock = ServerClock()
    hour, wait = 3600 * ONE_SECOND, 600 * ONE_SECOND
    open_journal = partial(open_shared_journal, source, clock=clock)
    async with open_journal() as one, open_journal() as other:
        for journal, id_ in ((one, 1), (other, 2)):
            await journal.recover(NOW, SMS)
            await make_ready(journal, id_)
            await accept_all(journal)
            step = Transition(sample_entry(id_, provider="sms"), State.READY, State.WAITING, NOW, NOW + wait)
            await journal.change([step])
    clock.instant += hour
    async with open_journal() as started:
        await started.recover(clock.instant, SMS, -hour)
        due = await started.due(clock.instant, {"": 9, "sms": 9})
        assert (due.entries, due.next_due) == ([], clock.instant + wait)
        assert len((await started.due(clock.instant + wait, {"": 9, "sms": 9})).entries) == 2


async def test_a_worker_that_starts_while_the_clock_is_days_ahead_deletes_nothing(
    source: JournalDatabase,
) -> None:
    """A report that came before its attempt's outcome is still there when that is known."""
    days, clock = 8 * 86_400 * ONE_SECOND, ServerClock()
    async with open_shared_journal(source, clock=clock) as one:
        await one.retime(0, lambda: NOW, days, PassedTime(clock, one.kept_clock, one.last_at).record())
        await one.receive([sample_receipt()])
        clock.instant = NOW + days
        async with open_shared_journal(source, clock=clock) as other:
            passed = PassedTime(clock, other.kept_clock, other.last_at)
            await other.prune(passed.before(7 * 86_400), 9)
        assert query(source, "SELECT count(*) FROM main.receipt") == [(1,)]


async def test_a_provider_that_the_new_worker_lacks_is_treated_as_removed(source: JournalDatabase) -> None:
    """What waits there goes on to any other, and what is in doubt there is held, as after a restart."""
    async with worker(source, ["email"]) as mail:
        async with worker(source, SMS) as text:
            await bring_to_wait(text, 1, NOW + ONE_SECOND, "sms")
            await bring_in_doubt(text, 2, State.WAITING)
            assert (await mail.follow(NOW, ["email"])).adopted is None
            assert await state_counts(text) == {State.WAITING: 2}
        await mail.follow(NOW, ["email"])
        assert await state_counts(mail) == {State.WAITING: 1, State.IN_DOUBT: 1}
        assert [each.id for each in (await mail.due(NOW + ONE_SECOND, {"": 9})).entries] == [1]
        await sound(source)


async def test_a_log_is_given_back_when_nothing_is_open_in_it_and_taken_by_the_next_start(
    source: JournalDatabase,
) -> None:
    """So there are as many logs as workers ever ran at once."""
    without_holder = "SELECT holder IS NULL FROM main.log ORDER BY number"
    async with worker(source) as other:
        for number in range(1, 6):
            async with worker(source) as journal:
                assert await other.follow(NOW, SMS)
                await hand_over(journal, number)
            assert (await other.follow(NOW, SMS)).adopted is not None
            assert query(source, without_holder) == [(False,), (False,)]
            await accept_all(other)
            await other.follow(NOW, SMS)
            assert query(source, without_holder) == [(False,), (True,)]
        account = await other.account()
        assert (account.taken, account.gap) == (5, 0)
        assert await told(source, 3) == ["dequeued", "sent"]
        await other.prune(2 * NOW, 9)  # their rows have real instants
        assert query(source, "SELECT count(*) FROM main.worker WHERE id > 0") == [(1,)]
        await sound(source)


async def test_messages_of_a_log_that_was_taken_over_go_on_while_the_others_are_followed(
    source: JournalDatabase,
) -> None:
    """Which log each message is in is read and written by two threads."""
    async with worker(source) as other:
        async with worker(source) as ended:
            await bring_in_doubt(ended, 1)
            await make_ready(ended, *range(2, 402))
        await adopted_by(other)
        (number,) = other._logs.keys() - {other._own.number}
        other._away.update(dict.fromkeys(range(1000, 500_000), number))  # as after many more

        async def follow() -> None:
            while len(found) < 400:
                await other.follow(NOW, SMS)

        found: list[int] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            while len(found) < 400:
                found += [entry.id for entry in (await other.due(NOW + 9, {"": 1})).entries]
        assert other._away.keys() >= set(found)


async def test_a_start_goes_on_in_the_log_of_an_ended_worker(
    source: JournalDatabase,
) -> None:
    """Also while another one, which has begun before, could take it over."""
    async with worker(source) as other:
        async with worker(source) as ended:
            await hand_over(ended, 1)
        async with open_shared_journal(source) as journal:
            found = await journal.recover(NOW, SMS)
            assert found.reporting == [1]
            assert (await other.follow(NOW, SMS)).adopted is None
            await hand_over_more(journal)
            assert await waiting_events(journal) == [(2, "sent")]
            await receive_all(journal, [sample_receipt("p1")])
            assert await waiting_events(journal) == [(2, "sent"), (1, "delivered")]
            assert query(source, "SELECT count(*) FROM main.log") == [(2,)]
    await sound(source)


async def hand_over_more(journal: Journal) -> None:
    """Send message 2, with what waits accepted before."""
    await accept_all(journal)
    await hand_over(journal, 2, "p2")


async def test_no_number_of_an_event_is_given_twice_in_a_log_that_was_taken_over(
    source: JournalDatabase,
) -> None:
    """What is posted now would be taken for the answer to another event, which nobody would report."""
    async with two_workers(source) as (one, other):
        await hand_over(one, 1, "p1")
        refused = await refuse_first(one, NOW)
        await hand_over(one, 2, "p2")
        await receive_all(one, [sample_receipt("p1")])
        end_worker(source)
        await other.follow(NOW, SMS)
        posted = await other.outbox(0, 9)
        assert (await decide_on(other, Action.RETRY, ItemKind.EVENT, refused.seq)).done
        await receive_all(other, [sample_receipt("p2")])
        await other.accept(posted, NOW)
        heard = {(row.message_id, row.status) for row in (*posted, *await other.outbox(0, 9))}
        assert {(1, "sent"), (1, "delivered"), (2, "sent"), (2, "delivered")} <= heard
        await accept_all(other)
        await sound(source)


async def test_while_attempts_of_a_worker_that_an_operator_ended_may_go_on_nobody_has_its_log(
    source: JournalDatabase,
) -> None:
    """Not even for the deletion of what is old: else another one would try the same message meanwhile."""
    clock = BootClock()
    async with worker(source) as ended, worker(source, clock=clock) as other:
        await deliver_to_sent(ended, 1)
        await make_ready(ended, 2)
        await begin_attempts(ended, attempt_on(2))
        workers = Workers(source)
        record = workers.list()[0]
        assert await anyio.to_thread.run_sync(workers.fence, record, NOW, By(None, None, None))
        await other.prune(DAYS_LATER, 9)
        assert (await other.account()).pruned == 0
        assert (await other.follow(NOW, SMS)).adopted is None
        adopted = []
        for _ in range(22):
            clock.now += 1.0
            adopted.append((await other.follow(NOW, SMS)).adopted)
        assert [len(each.doubtful) for each in adopted if each is not None] == [1]
        await other.prune(DAYS_LATER, 9)
        assert (await other.account()).pruned == 1
        await sound(source)


async def test_old_messages_of_all_logs_that_nobody_has_are_deleted(source: JournalDatabase) -> None:
    """Whatever has to stay in the first one of them."""
    async with worker(source) as first, worker(source) as second, worker(source) as other:
        await hand_over(first, 1)
        await refuse_first(first, NOW)
        await deliver_to_sent(second, 2, "p2")
        for _ in range(2):
            end_worker(source)
            await other.follow(NOW, SMS)
        for _ in range(4):
            await other.prune(DAYS_LATER, 9)
        account = await other.account()
        assert (account.pruned, account.ended, account.gap) == (1, 1, 0)


# deadlines of a log that was taken over


async def test_deadlines_of_a_log_that_was_taken_over_go_on_where_they_stood(source: JournalDatabase) -> None:
    """Its listening time differs from that of the worker's own log: new ones there are by the worker's."""
    within = 4 * ONE_SECOND
    async with worker(source) as other:
        own = (await other.pass_deadlines(100 * ONE_SECOND, NOW, SMS, 9)).listened
        async with worker(source) as ended:
            await send_to_confirm(ended, 1, (await ended.pass_deadlines(0, NOW, SMS, 9)).listened, within)
            await ended.pass_deadlines(ONE_SECOND, NOW, SMS, 9)
            await make_ready(ended, 2)
        await other.follow(NOW, SMS)
        (entry,) = (await other.due(NOW, {"": 9})).entries
        begun = entry.begun("sms", b"12345678", NOW)
        await begin_attempts(other, begun)
        confirmation = Confirmation(own + within, within, failed_next=False)
        await other.change([accepted_step(begun, "p2")._replace(confirmation=confirmation)])
        await accept_all(other)
        found = await other.pass_deadlines(0, NOW, SMS, 9)
        assert (found.listened, found.passed) == (own, {})
        assert found.next_by is not None
        assert own < found.next_by <= own + within
        total = Counter[str]()
        for _ in range(2):
            total += Counter((await other.pass_deadlines(within, NOW, SMS, 9)).passed)
        assert total == {"sms": 2}
        await sound(source)


async def test_no_deadline_is_early_in_a_log_that_was_just_taken_over(source: JournalDatabase) -> None:
    """The new worker listened for a whole while, most of which was before the message was sent."""
    tick, within = 5 * ONE_SECOND, 4 * ONE_SECOND
    async with worker(source) as other:
        async with worker(source) as ended:
            time = (await ended.pass_deadlines(tick, NOW, SMS, 9)).listened
            await send_to_confirm(ended, 1, time, within)
        await other.follow(NOW, SMS)
        assert not (await other.pass_deadlines(tick, NOW, SMS, 9)).passed
        assert not (await other.pass_deadlines(within - 1, NOW, SMS, 9)).passed
        assert (await other.pass_deadlines(1, NOW, SMS, 9)).passed == {"sms": 1}


async def send_to_confirm(journal: Journal, id_: int, now: int, within: int) -> None:
    """Send a message that has to be confirmed within some of the listening time."""
    await make_ready(journal, id_)
    await begin_attempts(journal, attempt_on(id_))
    confirmation = Confirmation(now + within, within, failed_next=False)
    await journal.change([accepted_step(attempt_on(id_), f"p{id_}")._replace(confirmation=confirmation)])
    await accept_all(journal)


# a message is one worker's


async def test_one_message_cant_be_begun_twice_at_once(source: JournalDatabase) -> None:
    async with worker(source) as journal:
        await make_ready(journal, 1)
        with pytest.raises(IllegalTransition):
            await begin_attempts(journal, attempt_on(1), attempt_on(1))


async def test_a_worker_takes_no_step_of_a_message_that_is_in_another_workers_hands(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        await make_ready(one, 1)
        with pytest.raises(IllegalTransition):
            await begin_attempts(other, attempt_on(1))
        await begin_attempts(one, attempt_on(1))


# receipts


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
        assert (found.pauses, [*found.stops], found.down_since) == (None, [], None)


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


async def test_the_end_of_a_pause_that_two_workers_notice_at_once_is_recorded_once(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        order = Order(Action.PAUSE, ItemKind.CHANNEL, ("sms",), lasts=1.0)
        assert (await one.decide(order, NOW, SMS)).done
        later = NOW + 2 * ONE_SECOND
        with standing_before_the_commit(one, source) as stands:

            async def second() -> None:
                await stands.reached()
                await beside(stands.go_on_when_waited_for, lambda: other.end_pauses(later))

            await beside(lambda: one.end_pauses(later), second)
        ended = query(source, "SELECT key FROM main.decision WHERE verb = 'resume'")
        assert ended == [("sms",)]


async def test_what_is_old_is_deleted_without_a_word_of_pauses_to_the_others(source: JournalDatabase) -> None:
    """Each would look again at once, as often as a portion is deleted."""
    async with two_workers(source) as (one, other):
        await deliver_to_sent(one, 7)
        await other.follow(NOW, SMS)
        assert await one.prune(DAYS_LATER, 9) == 1
        assert (await other.follow(NOW, SMS)).pauses is None


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
    counting = Counting(Snapshots(lambda: connect_to_read(source)), times.__next__)
    counts = counting.count()
    assert counts is not None
    assert counts.waiting == 1
    assert [counting.is_due, counting.is_due] == [False, True]


async def test_a_clock_that_is_put_back_at_one_of_two_workers_moves_no_due_times(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        await bring_to_wait(one, 1, NOW + ONE_SECOND, "sms")
        await other.retime(60 * ONE_SECOND, lambda: NOW, 60 * ONE_SECOND)
        assert (await one.due(NOW, {"sms": 9})) == ([], NOW + ONE_SECOND, 0, 0)


@pytest.mark.parametrize("first", ["the oldest", "the younger", "a new one"])
@pytest.mark.parametrize("hours", [-1, 3])
async def test_a_pause_lasts_as_long_as_ordered_whichever_worker_first_notices_a_step_of_the_clock(
    source: JournalDatabase, first: str, hours: int
) -> None:
    """The oldest moves and ends it for all; when that is gone, the next one ends it."""
    step, clock = hours * 3600 * ONE_SECOND, ServerClock()
    order = Order(Action.PAUSE, ItemKind.CHANNEL, ("sms",), lasts=7200.0)
    decisions = "SELECT verb FROM main.decision ORDER BY seq"
    async with AsyncExitStack() as stack:

        async def started() -> tuple[Recorder, Pausing, Waiting]:
            journal = await stack.enter_async_context(open_shared_journal(source, clock=clock))
            memory = memory_on(journal, clock)
            common = common_on(journal, memory)
            await common.recorder.recover(SMS)
            return common.recorder, memory.pausing, common.waiting

        async def look(*each: tuple[Recorder, Pausing, Waiting]) -> None:
            for recorder, pausing, _ in each:
                await recorder.follow(SMS)
                await pausing.end_those_over()

        oldest, younger = [await started() for _ in range(2)]
        assert (await oldest[0].decide(order, SMS)).done
        await look(oldest, younger)
        clock.instant += step
        if first == "a new one":
            new = await started()
            await new[2].follow_clock(0)
            await look(new)
        workers = (oldest, younger) if first == "the oldest" else (younger, oldest)
        for worker_ in workers:
            await worker_[2].follow_clock(step)
            await look(worker_)
        await look(oldest, younger)
        for _, pausing, _ in workers:
            (pause,) = pausing.pauses.all
            assert pause.until == clock.instant + 7200 * ONE_SECOND
        clock.go_on(7200 * ONE_SECOND)
        await look(younger)
        assert query(source, decisions) == [("pause",)]
        end_worker(source)
        await look(younger)
        assert query(source, decisions) == [("pause",), ("resume",)]


@pytest.mark.parametrize("step", [-3600 * ONE_SECOND, 3600 * ONE_SECOND])
async def test_of_workers_that_start_together_one_moves_the_pauses(
    source: JournalDatabase, step: int
) -> None:
    """Each finds that the clock was set since the earlier run."""
    clock = ServerClock()
    order = Order(Action.PAUSE, ItemKind.SETTINGS, ("1",), lasts=7200.0)
    async with open_shared_journal(source, clock=clock) as journal:
        await (await recovered(journal, clock)).recorder.decide(order, SMS)
    clock.instant += step
    async with AsyncExitStack() as stack:
        journals = [
            await stack.enter_async_context(open_shared_journal(source, clock=clock)) for _ in range(2)
        ]
        for common in [await recovered(journal, clock) for journal in journals]:
            (pause,) = common.memory.pauses.all
            assert pause.until == clock.instant + 7200 * ONE_SECOND


async def test_a_stop_counts_though_the_clock_was_put_back_while_no_worker_ran(
    source: JournalDatabase,
) -> None:
    """The recipient resumed while it was ahead."""
    clock = ServerClock()

    def stop(*, stopped: bool) -> StopChange:
        now = clock.now()
        return StopChange("sms", b"1" * 16, now, stopped, None, "receipt", heard_at=now)

    async with open_shared_journal(source, clock=clock) as journal:
        await recovered(journal, clock)
        for stopped in (True, False):
            await journal.receive([], [stop(stopped=stopped)])
    clock.instant -= 3600 * ONE_SECOND
    async with open_shared_journal(source, clock=clock) as journal:
        await recovered(journal, clock)
        await journal.receive([], [stop(stopped=True)])
        assert len(await journal.stopped()) == 1


@pytest.mark.parametrize("is_at_work", [True, False])
async def test_a_pause_that_a_command_orders_goes_by_an_earlier_run_only_where_no_worker_is_at_work(
    source: JournalDatabase, is_at_work: bool
) -> None:
    """The clock was put back after an ended worker wrote; another one goes on since then, or died before."""
    hour, clock = 3600 * ONE_SECOND, ServerClock()
    open_journal = partial(open_shared_journal, source, clock=clock)
    async with open_journal() as one:
        await one.recover(NOW, SMS)
        async with open_journal() as ended:
            await ended.take([sample_message(1)], [], NOW)
        clock.instant = NOW - hour
        if is_at_work:
            await one.follow(NOW - hour, SMS)
        async with open_journal() as command:
            at = await at_next_start(command, clock)
    assert at == (NOW - hour if is_at_work else NOW)


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
        assert journal.lease_covers(19.0)
        clock.now += 15.0
        assert journal.lease_covers(4.0)
        assert not journal.lease_covers(6.0)
        await journal.renew()
        assert journal.lease_covers(19.0)


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
        assert journal.lease_covers(18.0)


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
            seq = self._refused.pop()
            decided, _ = await ordered(journal, Action.RETRY, ItemKind.EVENT, seq, followed_by=[journal])
            if not decided.done:  # the worker that has it does anything but look
                self._refused.append(seq)

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


@pytest.mark.parametrize("order", [("sent", "delivered"), ("delivered", "sent")])
async def test_refused_events_go_out_again_as_they_happened_whichever_is_retried_first(
    source: JournalDatabase, order: Sequence[str]
) -> None:
    """Both orders come to the other worker."""
    async with two_workers(source) as (one, other):
        await hand_over(one, 1)
        await receive_all(one, [sample_receipt("p1")])
        rows = await one.outbox(0, 9)
        refused = {row.status: row.seq for row in rows}
        for row in rows:
            await one.refuse(row, "400", NOW)
        await one.take([sample_message(1)], [], NOW)
        results = [
            await ordered(other, Action.RETRY, ItemKind.EVENT, refused[status], followed_by=[one])
            for status in (*order, "sent")
        ]
        assert [bool(decided.done) for decided, _ in results] == [True, True, False]
        told = [row.status for row in await one.outbox(0, 9)]
        assert told[-1] == "delivered"
        assert [status for status in told if status != "dequeued"] == ["sent", "delivered"]
        await accept_all(one)
        await sound(source)


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
            decided, _ = await ordered(
                operator, Action.RETRY, ItemKind.EVENT, refused[status], followed_by=[other]
            )
            assert decided.done
            await accept_all(other)
        assert (await told(source, 7))[-1] == "delivered"
        heard = await anyio.to_thread.run_sync(database_reader(source).audit)
        assert not heard.findings
