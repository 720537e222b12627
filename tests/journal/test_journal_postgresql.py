"""The journal in PostgreSQL, beyond the table of journals: leases, lost connections, logs, addresses."""

from __future__ import annotations

import os
import random
import signal
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import psycopg
import pytest
import trustme
from psycopg.conninfo import conninfo_to_dict

from deliveryd.errors import (
    JournalError,
    JournalFull,
    JournalUnreachable,
    JournalUnusable,
    OutOfOrder,
)
from deliveryd.journal import group_commit
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql import commits, opening
from deliveryd.journal.postgresql.connection import connect_to_read, connect_to_write, conninfo
from deliveryd.journal.postgresql.database import Database
from deliveryd.journal.postgresql.lease import (
    CommitsLost,
    Fenced,
    LeaseWatch,
    LiveWorker,
    fence,
    live_workers,
)
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.postgresql.schema import FORMAT
from deliveryd.model import Outcome, Transition
from deliveryd.states import State
from journal.samples import (
    DAYS_LATER,
    NOW,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    bring_to_wait,
    decide_on,
    deliver_to_sent,
    make_ready,
    receive_all,
    sample_message,
    sample_receipt,
    state_counts,
    waiting_events,
)
from support import fake_databases
from support.directories import NoPostgres, open_postgres
from support.logs import log_lines
from support.memory import folder_of_files
from support.patience import PATIENCE
from support.pg_proxy import Proxy, proxy_to
from support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LEASE = 1.0
"""Seconds: as long as the tests may wait for a worker that was killed."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


# leases


async def test_a_fenced_worker_records_nothing_more_and_says_so(source: JournalDatabase) -> None:
    async with open_shared_journal(source, lease=LEASE) as journal:
        await make_ready(journal, 1)
        with connect_to_write(source, 9) as other:
            (worker,) = live_workers(other)
            assert fence(other, worker)
            assert not fence(other, worker)
        with pytest.raises(Fenced):
            await begin_attempts(journal, attempt_on(1))
        with pytest.raises(Fenced):
            await journal.counts()
    async with open_shared_journal(source, lease=LEASE) as journal:
        assert await state_counts(journal) == {State.READY: 1}


async def test_a_fence_fails_where_the_worker_committed_since_it_was_seen(source: JournalDatabase) -> None:
    async with open_shared_journal(source) as journal:
        with connect_to_write(source, 9) as other:
            (seen,) = live_workers(other)
            await make_ready(journal, 1)
            assert not fence(other, seen)
        await begin_attempts(journal, attempt_on(1))


async def test_a_database_that_lost_acknowledged_commits_ends_the_journal(source: JournalDatabase) -> None:
    """As after an asynchronous standby took over; a worker that went on would send again what it sent."""
    async with open_shared_journal(source) as journal:
        await make_ready(journal, 1)
        with psycopg.connect(source.url, autocommit=True) as admin:
            admin.execute("UPDATE main.worker SET commits = commits - 1 WHERE ended IS NULL")
        with pytest.raises(CommitsLost):
            await begin_attempts(journal, attempt_on(1))


def test_a_lease_is_over_when_its_counter_stood_still_for_all_of_it_as_far_as_was_watched() -> None:
    """By the watcher's clock alone; what was before the first look doesn't count."""
    watch = LeaseWatch()
    still, busy = LiveWorker(1, "a", 20.0, 5), LiveWorker(2, "b", 20.0, 5)
    assert watch.over([still, busy], 999.0, 1000.0) == []
    assert watch.over([still, busy._replace(commits=6)], 1019.9, 1030.0) == []
    assert watch.over([still, busy._replace(commits=6)], 1020.0, 1020.0) == [still]
    assert watch.over([busy._replace(commits=7)], 1100.0, 1100.0) == []
    assert watch.over([still], 1100.0, 1100.0) == []  # it was gone, and is watched anew


def test_a_late_answer_is_no_time_in_which_a_counter_stood_still() -> None:
    """It may have moved just before the answer came; and after one that found it unmoved was asked for."""
    watch = LeaseWatch()
    seen = LiveWorker(1, "a", 20.0, 5)
    assert watch.over([seen], 1000.0, 1008.5) == []
    assert watch.over([seen], 1028.0, 1040.0) == []
    assert watch.over([seen], 1028.5, 1028.5) == [seen]


async def test_a_number_that_was_given_again_after_a_loss_is_another_workers(source: JournalDatabase) -> None:
    """A standby that lacked a worker's beginning took over; the next worker has its number and counter."""
    async with open_shared_journal(source) as old:
        await old.recover(NOW, ["sms"])
        await make_ready(old, 1)
        with psycopg.connect(source.url, autocommit=True) as admin:
            (commits,) = admin.execute("SELECT commits FROM main.worker WHERE id > 0").fetchone() or (0,)
            admin.execute("DELETE FROM main.worker WHERE id > 0")
            admin.execute("TRUNCATE main.message, main.event")
            admin.execute("ALTER TABLE main.worker ALTER id RESTART WITH 1")
        async with open_shared_journal(source) as new:
            await new.recover(NOW, ["sms"])
            with psycopg.connect(source.url, autocommit=True) as admin:
                admin.execute("UPDATE main.worker SET commits = %s WHERE id > 0", (commits,))
            with pytest.raises(CommitsLost):
                await make_ready(old, 2)
            with pytest.raises(JournalError):
                await make_ready(new, 3)


# the outbox


def counter(source: JournalDatabase) -> int:
    """How often the one live worker committed."""
    with psycopg.connect(source.url) as db:
        (commits,) = db.execute("SELECT commits FROM main.worker WHERE ended IS NULL").fetchone() or (0,)
        return int(commits)


async def test_the_outbox_is_read_without_a_commit_until_the_lease_has_to_be_renewed(
    source: JournalDatabase,
) -> None:
    """A worker that does nothing but read its outbox keeps its lease all the same."""
    now = 1000.0
    timed: list[int] = []
    async with open_shared_journal(
        source, lease=20.0, boot_time=lambda: now, observe=lambda _s, count: timed.append(count)
    ) as journal:
        await journal.take([sample_message(1)], [], NOW)
        before = counter(source)
        timed.clear()
        for _ in range(5):
            assert await waiting_events(journal) == [(1, "dequeued")]
        assert counter(source) == before
        assert timed == []
        for expected in (before + 1, before + 2):
            now += 2.5  # half of the least time between two renewals
            await waiting_events(journal)
            assert counter(source) == expected


async def test_the_first_look_over_a_new_connection_finds_out_that_commits_are_lost(
    source: JournalDatabase,
) -> None:
    """It may lead to a standby that lacks them: what was reported there would be reported again."""
    async with open_shared_journal(source) as journal:
        await make_ready(journal, 1)
        assert await waiting_events(journal) == []
        with psycopg.connect(source.url, autocommit=True) as admin:
            admin.execute("UPDATE main.worker SET commits = commits - 1 WHERE ended IS NULL")
            admin.execute("UPDATE main.log SET settled = number << 40")
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'deliveryd' AND datname = current_database()"
            )
        with pytest.raises(CommitsLost):
            await waiting_events(journal)


async def test_a_look_at_the_outbox_finds_out_that_the_lease_was_ended(source: JournalDatabase) -> None:
    """What would be reported next may be another worker's by then."""
    async with open_shared_journal(source) as journal:
        await journal.take([sample_message(1)], [], NOW)
        with psycopg.connect(source.url, autocommit=True) as admin:
            admin.execute("UPDATE main.worker SET ended = 'ordered' WHERE ended IS NULL")
        with pytest.raises(Fenced):
            await waiting_events(journal)


async def test_events_are_read_and_settled_in_their_order(source: JournalDatabase) -> None:
    """Whichever messages they are of, and however old these are."""
    async with open_shared_journal(source) as journal:
        await journal.recover(NOW, ["sms"])
        await make_ready(journal, 1, 2)
        await journal.take([sample_message(3)], [], DAYS_LATER)
        await begin_attempts(journal, attempt_on(1))
        await journal.change([accepted_step(attempt_on(1), "p1")])
        expected = [(3, "dequeued"), (1, "sent"), (4, "dequeued")]
        assert await waiting_events(journal) == expected[:2]
        await journal.take([sample_message(4)], [], DAYS_LATER)
        assert await waiting_events(journal) == expected
        assert [(row.message_id, row.status) for row in await journal.outbox(0, 2)] == expected[:2]
        rows = await journal.outbox(0, 3)
        for too_early in ([rows[0], rows[2]], rows[1:2], rows[1:3]):
            with pytest.raises(OutOfOrder):
                await journal.accept(too_early, DAYS_LATER)
        await journal.accept(rows[:1], DAYS_LATER)
        assert await waiting_events(journal) == expected[1:]
        await journal.accept(await journal.outbox(0, 3), DAYS_LATER)
        assert await waiting_events(journal) == []


async def test_what_waits_in_a_log_that_was_taken_over_is_read_first(source: JournalDatabase) -> None:
    """Before what the worker has to report itself: it waits for longer."""
    async with open_shared_journal(source) as journal:
        await journal.recover(NOW, ["sms"])
        async with open_shared_journal(source) as other:
            await other.recover(NOW, ["sms"])
            await other.take([sample_message(1)], [], NOW)
        await journal.take([sample_message(2)], [], DAYS_LATER)
        await journal.follow(NOW, ["sms"])
        assert await waiting_events(journal) == [(1, "dequeued"), (2, "dequeued")]


async def test_numbers_of_a_commit_that_failed_are_left_out(source: JournalDatabase) -> None:
    """The next event is found behind the gap."""
    async with open_shared_journal(source) as journal:
        await make_ready(journal, 1)
        with psycopg.connect(source.url, autocommit=True) as admin:
            admin.execute("ALTER TABLE main.event ADD CONSTRAINT no_two CHECK (message_id <> 2) NOT VALID")
            with pytest.raises(psycopg.IntegrityError):
                await journal.take([sample_message(2)], [], NOW)
            admin.execute("ALTER TABLE main.event DROP CONSTRAINT no_two")
        await journal.take([sample_message(3)], [], NOW)
        assert await waiting_events(journal) == [(3, "dequeued")]
        await accept_all(journal)
        assert await waiting_events(journal) == []


# connections


@pytest.fixture
def proxied(source: JournalDatabase) -> Iterator[tuple[JournalDatabase, Proxy]]:
    """The journal behind a proxy."""
    url = urlsplit(source.url)
    server = Path(parse_qs(url.query)["host"][0])
    with (
        TemporaryDirectory(prefix="pgx-", dir=folder_of_files()) as folder,
        proxy_to(server, Path(folder)) as proxy,
    ):
        yield JournalDatabase(source.url.replace(str(server), folder)), proxy


async def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_done_twice(
    proxied: tuple[JournalDatabase, Proxy],
) -> None:
    """The counter of the lease tells that it took place; the journal goes on over a new connection."""
    source, proxy = proxied
    async with open_shared_journal(source) as journal:
        for number in range(1, 6):
            proxy.cuts = 1
            assert set(await journal.take([sample_message(number)], [], NOW)) == {number}
            assert proxy.cuts == 0
        assert [row.message_id for row in await accept_all(journal)] == [1, 2, 3, 4, 5]
        account = await journal.account()
        assert (account.taken, account.gap) == (5, 0)


async def test_while_the_database_is_down_steps_wait_and_receipts_are_given_back() -> None:
    """A crash of the server loses nothing that was acknowledged; the line stands still meanwhile."""
    with TemporaryDirectory(prefix="pg-", dir=folder_of_files()):
        try:
            context = open_postgres()
            server = context.__enter__()
        except NoPostgres:
            pytest.skip("there is no PostgreSQL here")
        try:
            async with open_shared_journal(JournalDatabase(server.url)) as journal:
                await make_ready(journal, 1, 2)
                seen: list[int] = []

                async def look_beside() -> None:
                    seen.append((await journal.account()).taken)

                server.stop()
                with pytest.raises(JournalUnreachable):
                    await journal.receive([sample_receipt("p1")])
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(begin_attempts, journal, attempt_on(1))
                    while not journal.full:
                        await anyio.lowlevel.checkpoint()
                    assert journal.is_unreachable
                    assert not journal.has_room()
                    tasks.start_soon(look_beside)
                    await anyio.to_thread.run_sync(server.start)
                assert seen == [2]
                assert not journal.is_unreachable
                assert await state_counts(journal) == {State.SENDING: 1, State.READY: 1}
                assert await receive_all(journal, [sample_receipt("p1")]) == ["unmatched"]
        finally:
            context.__exit__(None, None, None)


async def test_the_log_says_whenever_the_reason_of_an_outage_is_another_one(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended the connection isn't what keeps the worker from another one; each is said once."""
    monkeypatch.setattr(group_commit, "FULL_PAUSE", 0.01)
    name = conninfo_to_dict(source.url)["dbname"]
    server = source.url.replace(f"/{name}?", "/postgres?")
    with log_lines("info") as lines:
        async with open_shared_journal(source) as journal:
            with psycopg.connect(server, autocommit=True) as admin, anyio.fail_after(PATIENCE):
                admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
                )
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(make_ready, journal, 1)
                    while "not currently accepting" not in str(lines()):
                        await anyio.lowlevel.checkpoint()
                    admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        told = [line for line in lines() if line["event"] in ("journal.unreachable", "journal.reached")]
    assert [line["event"] for line in told][-1] == "journal.reached"
    reasons = [line["reason"] for line in told[:-1]]
    assert len(reasons) == len(set(reasons))
    assert "is not currently accepting connections" in reasons[-1]


async def test_a_database_that_takes_too_long_counts_as_one_that_is_gone(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A COMMIT may wait for a standby for hours: no error tells of it, and a restart wouldn't help."""
    monkeypatch.setattr(commits, "STALLED", 0.1)
    async with open_shared_journal(source) as journal:
        with psycopg.connect(source.url) as admin, anyio.fail_after(PATIENCE):
            admin.execute("LOCK TABLE main.worker IN EXCLUSIVE MODE")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(make_ready, journal, 1)
                while not journal.full:
                    await anyio.lowlevel.checkpoint()
                assert journal.is_unreachable
                admin.rollback()
        assert not journal.full
        assert await state_counts(journal) == {State.READY: 1}


async def test_a_server_that_hangs_is_logged_while_it_hangs(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has a line though the server gives no reason either, and a second one about that."""
    for name in ("STALLED", "LOOKED_EVERY", "EXPLAINED_WITHIN"):
        monkeypatch.setattr(commits, name, 0.1)
    with log_lines("info") as lines:
        async with open_shared_journal(source) as journal, anyio.create_task_group() as tasks:
            await journal.open_work()  # its connection is kept, and asked for the reason
            with psycopg.connect(source.url) as admin, anyio.fail_after(PATIENCE):
                query = (
                    "SELECT pid FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                sessions = [pid for (pid,) in admin.execute(query)]
                for pid in sessions:
                    os.kill(pid, signal.SIGSTOP)
                try:
                    tasks.start_soon(make_ready, journal, 1)
                    while str(lines()).count("journal.unreachable") < 2:
                        await anyio.lowlevel.checkpoint()
                finally:
                    for pid in sessions:
                        os.kill(pid, signal.SIGCONT)
                while "journal.reached" not in str(lines()):
                    await anyio.lowlevel.checkpoint()
        named = ("journal.unreachable", "journal.reached")
        told = [line.get("reason") for line in lines() if line["event"] in named]
    assert told == [
        commits.NO_ANSWER,
        f"{commits.NO_ANSWER}: no other connection gets an answer: the server hangs",
        None,
    ]


async def test_a_commit_that_was_cancelled_while_it_waited_for_a_standby_ends_the_journal(
    source: JournalDatabase,
) -> None:
    """PostgreSQL reports success with a warning; the standby may not have it."""
    async with open_shared_journal(source) as journal:
        await make_ready(journal, 1)
        with psycopg.connect(source.url, autocommit=True) as admin:
            try:
                admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
                admin.execute("SELECT pg_reload_conf()")
                async with anyio.create_task_group() as tasks:

                    async def step() -> None:
                        with pytest.raises(JournalError, match="standby"):  # noqa: PT012  # it repeats
                            while True:
                                await journal.retime(0, lambda: NOW, 0)

                    tasks.start_soon(step)
                    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                    while (row := admin.execute(waiting).fetchone()) is None:
                        await anyio.lowlevel.checkpoint()
                    admin.execute("SELECT pg_cancel_backend(%s)", row)
                assert journal.is_broken
            finally:
                admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
                admin.execute("SELECT pg_reload_conf()")


async def test_a_commit_that_goes_on_when_its_connection_is_cut_ends_no_worker(
    proxied: tuple[JournalDatabase, Proxy], source: JournalDatabase
) -> None:
    """It waits for a standby while the worker asks what became of it: the answer has to wait as well."""
    there, proxy = proxied
    async with open_shared_journal(there) as journal:
        with psycopg.connect(source.url, autocommit=True) as admin:
            try:
                admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
                admin.execute("SELECT pg_reload_conf()")
                async with anyio.create_task_group() as tasks:

                    async def take() -> None:
                        for number in count(1):
                            taken[number] = await journal.take([sample_message(number)], [], NOW)
                            if admin.execute(without).fetchone():
                                return

                    taken: dict[int, Mapping[int, int]] = {}
                    without = "SELECT 1 WHERE current_setting('synchronous_standby_names') = ''"
                    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                    asking = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                    tasks.start_soon(take)
                    while admin.execute(waiting).fetchone() is None:
                        await anyio.lowlevel.checkpoint()
                    proxy.cut()
                    while admin.execute(asking).fetchone() is None:
                        await anyio.lowlevel.checkpoint()
                    admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
                    admin.execute("SELECT pg_reload_conf()")
            finally:
                admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
                admin.execute("SELECT pg_reload_conf()")
        assert all(set(ids) == {number} for number, ids in taken.items())
        assert [row.message_id for row in await accept_all(journal)] == list(taken)


@pytest.mark.parametrize("table", ["main.worker", "main.event"])
async def test_a_session_that_is_ended_while_the_journal_opens_is_told_in_one_line(
    source: JournalDatabase, table: str
) -> None:
    """As where a server restarts at that moment: nobody reads a traceback for it."""
    async with open_shared_journal(source):
        pass
    with psycopg.connect(source.url) as busy, psycopg.connect(source.url, autocommit=True) as admin:
        busy.execute(f"LOCK TABLE {table}")

        async def end_session() -> None:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'relation'"
            while admin.execute(ended).fetchone() is None:
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end_session)
            with pytest.raises(JournalUnreachable, match="can't be reached"):
                async with open_shared_journal(source):
                    pass


@pytest.mark.parametrize("setting", ["default_transaction_read_only = on", "lock_timeout = '20ms'"])
async def test_a_server_that_takes_no_writes_for_now_is_waited_for(
    source: JournalDatabase, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of a cloud does that whose disk is nearly full; the line goes on when it has room again."""
    monkeypatch.setattr(group_commit, "FULL_PAUSE", 0.05)
    async with open_shared_journal(source) as journal:
        writes = "-c default_transaction_read_only=off"
        with (
            psycopg.connect(source.url, autocommit=True, options=writes) as admin,
            psycopg.connect(source.url, options=writes) as busy,
        ):
            try:
                if "lock" in setting:
                    busy.execute("LOCK TABLE main.message IN EXCLUSIVE MODE")
                admin.execute(f"ALTER SYSTEM SET {setting}")
                admin.execute("SELECT pg_reload_conf()")
                async with anyio.create_task_group() as tasks:

                    async def take() -> None:
                        for number in count(1):
                            await make_ready(journal, number)
                            if is_over:
                                return

                    is_over = False
                    tasks.start_soon(take)
                    while not journal.is_unreachable:
                        await anyio.lowlevel.checkpoint()
                    admin.execute(f"ALTER SYSTEM RESET {setting.partition(' ')[0]}")
                    admin.execute("SELECT pg_reload_conf()")
                    busy.rollback()
                    is_over = True
            finally:
                admin.execute(f"ALTER SYSTEM RESET {setting.partition(' ')[0]}")
                admin.execute("SELECT pg_reload_conf()")
        assert not journal.is_broken


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_or_told_twice_while_connections_break_at_random(
    proxied: tuple[JournalDatabase, Proxy],
    source: JournalDatabase,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sessions are ended by the server, and answers to COMMIT are swallowed; eight messages live at once."""
    monkeypatch.setattr(group_commit, "FULL_PAUSE", 0.01)
    monkeypatch.setattr(commits, "RECONNECT_PAUSE", 0.01)
    choices = random.Random(seed)
    behind, proxy = proxied
    async with open_shared_journal(behind) as journal, anyio.create_task_group() as tasks:

        async def break_connections() -> None:
            with psycopg.connect(source.url, autocommit=True) as admin:
                while True:
                    await anyio.sleep(choices.random() * 0.1)
                    if choices.random() < 0.5:
                        proxy.cuts += 1
                    else:
                        admin.execute(_END_ALL_OTHERS)

        tasks.start_soon(break_connections)
        async with anyio.create_task_group() as lives:
            for part in range(8):
                lives.start_soon(_live, journal, range(part * 10 + 1, part * 10 + 11))
        tasks.cancel_scope.cancel()
        proxy.cuts = 0
    async with open_shared_journal(source) as journal:
        account = await journal.account()
        assert (account.taken, account.ends, account.gap) == (80, {State.DELIVERED: 80}, 0)
        for life in database_reader(source).lives(range(1, 81)):
            assert [event.status for event in life.events] == ["dequeued", "sent", "delivered"]


_END_ALL_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def _live(journal: Journal, numbers: Iterable[int]) -> None:
    """Bring messages from the queue to their receipts, one after the other."""
    for number in numbers:
        assert set(await journal.take([sample_message(number)], [], NOW)) == {number}
        await journal.accept(await journal.outbox(0, 1000), NOW)
        await begin_attempts(journal, attempt_on(number))
        await journal.change([accepted_step(attempt_on(number), f"p{number}")])
        while True:
            with suppress(JournalFull):
                assert await receive_all(journal, [sample_receipt(f"p{number}")]) in (
                    ["matched"],
                    ["repeated"],
                )
                break


async def test_a_connection_that_is_lost_before_a_statement_for_many_rows_is_told_as_lost(
    source: JournalDatabase,
) -> None:
    """Its parameters' types are asked for first, and that waits for the server like everything else."""
    async with open_shared_journal(source):
        pass
    with psycopg.connect(source.url, autocommit=True) as admin, connect_to_write(source, 9) as lost:
        statement = "UPDATE meta SET value = ? WHERE key = ? AND key <> 'of this test'"
        rows = [("a", "one"), ("b", "two")]
        assert Database(lost).executemany(statement, rows).rowcount == 0
        admin.execute("SELECT pg_terminate_backend(%s, 60000)", (lost.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            Database(lost).executemany(f"{statement} AND TRUE", rows)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://ops:secret@db.example/j", "holds a password"),
        ("postgresql://db.example/j?sslmode=require", "verify-full"),
        ("postgresql://127.0.0.1,db.example/j?sslmode=disable", "verify-full"),
        ("postgresql:///j?sslmode=prefer", "verify-full"),
        ("postgresql://localhost/j?hostaddr=192.0.2.1&sslmode=prefer", "verify-full"),
        ("postgresql:///j?host=/run/postgresql&hostaddr=192.0.2.1&sslmode=prefer", "verify-full"),
        ("postgresql://db.example/j?sslkey=/k&sslpassword=secret", "holds a password"),
        ("postgresql://db.example/j?nonsense=1", "can't be read"),
    ],
)
def test_an_address_that_would_leak_or_trust_anybody_is_refused(url: str, why: str) -> None:
    with pytest.raises(JournalUnusable, match=why):
        conninfo(JournalDatabase(url))


@pytest.mark.parametrize("how", ["variable", "service"])
def test_the_environment_leads_a_local_address_nowhere_else(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off this machine the server has to prove who it is, and nobody is to be asked who needn't."""
    service = tmp_path / "services"
    service.write_text("[elsewhere]\nhostaddr=127.0.0.2\n")
    if how == "variable":
        monkeypatch.setenv("PGHOSTADDR", "127.0.0.2")
    else:
        monkeypatch.setenv("PGSERVICEFILE", str(service))
        monkeypatch.setenv("PGSERVICE", "elsewhere")
    for host in ("localhost", "127.0.0.1"):
        with socket.create_server(("127.0.0.2", 0)) as elsewhere:
            elsewhere.setblocking(False)
            port = elsewhere.getsockname()[1]
            with pytest.raises(JournalUnreachable):
                connect_to_read(JournalDatabase(f"postgresql://ops@{host}:{port}/j?connect_timeout=2"))
            with pytest.raises(BlockingIOError):
                elsewhere.accept()


def test_an_error_of_the_database_quotes_no_row(source: JournalDatabase) -> None:
    """Errors are logged, and a row has a message's text."""
    with psycopg.connect(source.url) as db:
        db.execute("CREATE TABLE message (id int NOT NULL, variables text)")
        with pytest.raises(psycopg.Error) as raised:
            db.execute("INSERT INTO message VALUES (NULL, 'Anna')")
    assert "Anna" in str(raised.value)
    assert "Anna" not in str(commits.translated(raised.value))


def test_a_password_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(JournalUnusable, match="may be read by all users"):
        conninfo(JournalDatabase("postgresql://ops@db.example/j", tmp_path / "password"))


def test_another_machine_has_to_prove_who_it_is_and_the_password_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s e'cret\n")
    (tmp_path / "password").chmod(0o600)
    found = conninfo_to_dict(
        conninfo(JournalDatabase("postgresql://ops@db.example/j", tmp_path / "password"))
    )
    assert (found["sslmode"], found["sslrootcert"], found["password"]) == (
        "verify-full",
        "system",
        "s e'cret",
    )
    here = conninfo_to_dict(conninfo(JournalDatabase("postgresql://ops@localhost/j")))
    assert "sslmode" not in here
    with pytest.raises(JournalUnusable, match="password_file"):
        conninfo(JournalDatabase("postgresql://ops@db.example/j", tmp_path / "absent"))


@pytest.mark.parametrize("talk", [fake_databases.postgresql, fake_databases.postgresql_md5])
@pytest.mark.parametrize("tls", [None, "anybody's"])
async def test_who_listens_on_loopback_first_is_not_given_the_password(
    talk: fake_databases.Talk, tls: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for plain text or MD5, with TLS that nothing proves or without: nothing comes."""
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text(fake_databases.PASSWORD)
    certificate = None
    if tls is not None:
        certificate = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(certificate)
    async with fake_databases.open_database(talk, certificate) as fake:
        url = f"postgresql://ops@127.0.0.1:{fake.port}/j"
        with pytest.raises(JournalUnreachable, match=r"have pg_hba\.conf ask for scram-sha-256"):
            await anyio.to_thread.run_sync(connect_to_read, JournalDatabase(url, password))
        monkeypatch.setenv("PGPASSWORD", fake_databases.PASSWORD)
        with pytest.raises(JournalUnreachable, match=r"have pg_hba\.conf ask for scram-sha-256"):
            await anyio.to_thread.run_sync(connect_to_read, JournalDatabase(url))
    assert fake.connections >= 2
    assert fake.answer is None
    assert not fake.has_the_password


@pytest.mark.parametrize(
    ("url", "is_asked"),
    [
        ("postgresql://ops@db.example/j", False),
        ("postgresql://ops@localhost/j?sslmode=verify-full", False),
        ("postgresql://ops@localhost/j", True),
        ("postgresql://ops@/j", True),
        ("postgresql://ops@/j?host=/tmp&sslmode=verify-full", True),
        ("postgresql://ops@/j?host=@abstract&sslmode=verify-full", True),
        ("postgresql://ops@/j?host=db.example,/tmp&sslmode=verify-full", True),
        ("postgresql://ops@/j?host=db.example,&sslmode=verify-full", True),
    ],
)
def test_who_listens_on_a_socket_has_to_prove_who_it_is(url: str, is_asked: bool, tmp_path: Path) -> None:
    """libpq has no TLS there, whatever sslmode says, and connects to a socket where no host is named."""
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text("secret")
    found = conninfo_to_dict(conninfo(JournalDatabase(url, tmp_path / "password")))
    assert found.get("require_auth") == ("scram-sha-256" if is_asked else None)


async def test_a_row_that_somebody_locks_for_long_is_told_in_the_log(source: JournalDatabase) -> None:
    """An operator's open transaction holds up all commits: one line says so, the next one names its lock."""
    with log_lines("info") as lines:

        async def logged(event: str, number: int = 1) -> str:
            while len(found := [line for line in lines() if line["event"] == event]) < number:  # noqa: ASYNC110  # a log
                await anyio.sleep(0.05)
            return str(found[-1].get("reason"))

        async with open_shared_journal(source) as journal:
            connected = psycopg.connect(source.url, application_name="psql")
            with connected as operator, anyio.fail_after(PATIENCE):
                operator.execute("SELECT 1 FROM main.worker FOR UPDATE")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(journal.take, [sample_message(1)], [], NOW)
                    told = await logged("journal.unreachable", 2)
                    assert f"session {operator.info.backend_pid} (user postgres, psql, idle in trans" in told
                    assert "holds a lock on worker: end its transaction" in told
                    operator.rollback()
                    await logged("journal.reached")


@pytest.mark.parametrize("lock", ["SELECT 1 FROM main.log FOR UPDATE", "LOCK TABLE main.worker"])
async def test_a_start_behind_a_lock_is_told_in_the_log_and_goes_on(
    source: JournalDatabase, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's open transaction holds up what a worker does first."""
    for name in ("STALLED", "LOOKED_EVERY"):
        monkeypatch.setattr(opening, name, 0.1)
    async with open_shared_journal(source):
        pass
    with log_lines("info") as lines, psycopg.connect(source.url, application_name="psql") as operator:
        operator.execute(lock.encode())
        holder = f"session {operator.info.backend_pid} (user postgres, psql, idle in trans"

        async def start() -> None:
            async with open_shared_journal(source):
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            with anyio.fail_after(PATIENCE):
                while "journal.unreachable" not in str(lines()):
                    await anyio.lowlevel.checkpoint()
            operator.rollback()
        told = [line.get("reason") for line in lines() if line["event"] != "journal.joined"]
    [reason, reached] = told
    assert str(reason).startswith(f"{opening.NOT_OPENED}: {holder}")
    assert reached is None


async def test_a_database_of_something_else_and_a_newer_format_are_left_alone(
    source: JournalDatabase,
) -> None:
    async with open_shared_journal(source):
        pass
    with psycopg.connect(source.url, autocommit=True) as admin:
        admin.execute(
            "UPDATE main.meta SET value = %s WHERE key IN ('format', 'written_since')", [str(FORMAT + 1)]
        )
        with pytest.raises(JournalUnusable, match="run a newer one"):
            async with open_shared_journal(source):
                pass
        admin.execute("DELETE FROM main.meta WHERE key = 'format'")
        with pytest.raises(JournalUnusable, match="no journal"):
            async with open_shared_journal(source):
                pass


# what is recorded


async def test_an_event_of_a_pruned_message_is_retried_after_a_restart(source: JournalDatabase) -> None:
    """Only its tombstone is left, and nothing was taken since the restart."""
    async with open_shared_journal(source) as journal:
        await deliver_to_sent(journal, 1, "p1")
        assert await journal.prune(DAYS_LATER, 9) == 1
        await journal.take([sample_message(1)], [], DAYS_LATER)
        dequeued, sent = await journal.outbox(0, 9)
        await journal.accept([dequeued], DAYS_LATER)
        await journal.refuse(sent, "400", DAYS_LATER)
    async with open_shared_journal(source) as journal:
        await journal.recover(DAYS_LATER, ["sms"])
        assert (await decide_on(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).done == (str(sent.seq),)
        assert await waiting_events(journal) == [(1, "sent")]


async def test_a_value_that_the_tables_refuse_fails_alone(source: JournalDatabase) -> None:
    async with open_shared_journal(source) as journal:
        await make_ready(journal, 1, 2)
        with pytest.raises(psycopg.DataError):
            await begin_attempts(journal, attempt_on(1, number=1 << 40))
        await begin_attempts(journal, attempt_on(2))
        assert await state_counts(journal) == {State.READY: 1, State.SENDING: 1}


async def test_text_that_a_column_cannot_hold_is_spelled_out_and_still_matches(
    source: JournalDatabase,
) -> None:
    async with open_shared_journal(source) as journal:
        await deliver_to_sent(journal, 1, "a\0b\ud800")
        assert await receive_all(journal, [sample_receipt("a\0b\ud800")]) == ["matched"]
        unmatched = sample_receipt("\0")._replace(reference="\0", status="\ud800\0")
        assert await receive_all(journal, [unmatched, unmatched]) == ["unmatched", "repeated"]


async def test_names_too_long_for_an_index_still_match_and_end_no_worker(source: JournalDatabase) -> None:
    """Whatever a provider calls a message: an index holds 2,704 bytes."""
    long = random.Random(1).randbytes(4000).hex()
    async with open_shared_journal(source) as journal:
        await deliver_to_sent(journal, 1, long)
        assert await receive_all(journal, [sample_receipt(long)]) == ["matched"]
        unmatched = sample_receipt(long[::-1])._replace(reference=long)
        assert await receive_all(journal, [unmatched, unmatched]) == ["unmatched", "repeated"]
        await make_ready(journal, 2)
        await begin_attempts(journal, attempt_on(2))
        doubt = Outcome("in_doubt", long[::-1])
        await journal.change(
            [Transition(attempt_on(2), State.SENDING, State.WAITING, NOW + 1, NOW + 2, doubt)]
        )
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            await bring_to_wait(journal, 3, NOW, provider=long)
        await make_ready(journal, 4)


async def test_a_pause_of_nothing_that_can_be_paused_ends_as_one_that_is_not_there(
    source: JournalDatabase,
) -> None:
    """A command line may hold bytes that are no text."""
    async with open_shared_journal(source) as journal:
        for key in ("\0", "\udcff"):
            assert not (await decide_on(journal, Action.RESUME, ItemKind.CHANNEL, key)).done


async def test_steps_of_many_callers_are_recorded_at_once_and_a_wrong_one_alone_fails(
    source: JournalDatabase,
) -> None:
    async with open_shared_journal(source) as journal:
        await make_ready(journal, 1, 2, 3)
        failed: list[int] = []

        async def begin(number: int) -> None:
            try:
                await begin_attempts(journal, attempt_on(number))
            except Exception:
                failed.append(number)

        async with anyio.create_task_group() as tasks:
            for number in (1, 9, 2, 3, 8):
                tasks.start_soon(begin, number)
        assert sorted(failed) == [8, 9]
        assert await state_counts(journal) == {State.SENDING: 3}
