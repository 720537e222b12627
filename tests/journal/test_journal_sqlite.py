"""The embedded journal's own: durability, file and lock, shared commits, the plans of its statements."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Collection
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from deliveryd.errors import IllegalTransition, JournalError, JournalFull, JournalLocked
from deliveryd.journal.journal import Journal
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.model import (
    Receipt,
    StatusEvent,
    Transition,
    format_instant,
)
from deliveryd.states import State
from journal.samples import deliver_to_sent, receive_all, sample_receipt
from support.journal_walk import NOW, entry, make_ready
from support.messages import queued_message as message

pytestmark = pytest.mark.anyio


SECOND_PROCESS = """
import sys
from collections.abc import Iterable
from pathlib import Path
import anyio
from deliveryd.errors import JournalError
from deliveryd.journal.sqlite.journal import open_journal_file

async def main():
    try:
        async with open_journal_file(Path(sys.argv[1])):
            print("opened")
    except JournalError as error:
        print(type(error).__name__, error)

anyio.run(main)
"""


COMMITTING_PROCESS = """
import itertools, sys
from pathlib import Path
import anyio
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.model import QueuedMessage

async def main():
    numbers = itertools.count(1)
    async with open_journal_file(Path(sys.argv[1])) as journal, anyio.create_task_group() as tasks:
        async def take():
            for number in numbers:
                await journal.take([QueuedMessage(number, 1, 1, {"text": "x" * 200})], [], number)
                print(number, flush=True)
        for _ in range(20):
            tasks.start_soon(take)

anyio.run(main)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


def a_database(path: Path, script: str) -> bytes:
    """Make a database that isn't ours, and return its bytes."""
    path.parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path.read_bytes()


def a_file(path: Path, contents: bytes) -> bytes:
    """Put a file where the journal would be."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(contents)
    return contents


def read(path: Path) -> bytes:
    return path.read_bytes()


def kill_while_it_commits(path: Path) -> set[int]:
    """Start a process that takes messages, and kill it; return the ids that it was told are recorded."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMITTING_PROCESS, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process, process.stdout as output:
        acknowledged = {int(output.readline()) for _ in range(500)}
        process.kill()
        acknowledged |= {int(line) for line in output if line.endswith("\n")}
    assert process.returncode == -signal.SIGKILL
    return acknowledged


async def refusal(path: Path) -> str:
    """Why the journal can't be opened."""
    with pytest.raises(JournalError) as caught:
        async with open_journal_file(path):
            pass
    return str(caught.value)


# durability


async def test_every_commit_is_forced_to_the_disk(path: Path) -> None:
    """A write-ahead log with synchronous=FULL (2): an acknowledged commit survives a loss of power."""
    async with open_journal_file(path) as journal:
        assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)
    async with open_journal_file(path) as journal:
        assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)


@pytest.mark.slow
async def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    """A process that is killed in the midst of its commits loses nothing that it had been told is done."""
    acknowledged = kill_while_it_commits(path)
    async with open_journal_file(path) as journal:
        kept = {taken.id for taken in (await journal.recover(NOW, [])).taken}
        reported = {row.message_id for row in await journal.outbox(0, 1_000_000)}
    assert acknowledged <= kept == reported


async def test_closing_flushes_what_waits(path: Path) -> None:
    """An operation that was asked for before the end is done, and its caller hears so."""
    taken: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def take(journal: Journal) -> None:
            taken.extend(await journal.take([message(1)], [], NOW))

        async with open_journal_file(path) as journal:
            tasks.start_soon(take, journal)
            while not journal._waiting:
                await checkpoint()
    assert taken == [1]
    async with open_journal_file(path) as journal:
        assert [row.message_id for row in await journal.outbox(0, 10)] == [1]


async def test_a_closed_journal_says_so(path: Path) -> None:
    async with open_journal_file(path) as journal:
        pass
    with pytest.raises(JournalError, match="closed"):
        await journal.counts()


# commits


async def test_operations_that_wait_together_share_a_commit(path: Path) -> None:
    """Two hundred takes at a time cost a few commits, and each is told of with its company."""
    commits: list[int] = []
    async with open_journal_file(
        path, observe=lambda _seconds, operations: commits.append(operations)
    ) as journal:
        async with anyio.create_task_group() as tasks:
            for id_ in range(200):
                tasks.start_soon(journal.take, [message(id_)], [], NOW)
        assert (await journal.counts()).states == {State.TAKEN: 200}
    assert sum(commits) == 201
    assert len(commits) <= 5


async def test_an_operation_that_fails_takes_back_its_own_and_nothing_of_its_company(path: Path) -> None:
    """Of three that share a commit, the middle one fails after it had begun to write."""
    event = StatusEvent(1, "sending", NOW)
    good = Transition(entry(1), State.READY, State.SENDING, NOW, events=(event,))
    async with open_journal_file(path) as journal:
        await make_ready(journal, 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(journal.take, [message(7)], [], NOW)

            async def fail() -> None:
                with pytest.raises(IllegalTransition):
                    await journal.change([good, Transition(entry(2), State.READY, State.SENDING, NOW)])

            tasks.start_soon(fail)
            tasks.start_soon(journal.take, [message(8)], [], NOW)
        assert (await journal.counts()).states == {State.READY: 1, State.TAKEN: 2}
        rows = await journal.outbox(0, 10)
        assert sorted((row.message_id, row.status) for row in rows) == [(7, "dequeued"), (8, "dequeued")]
        await journal.change([good])
    assert [attempt.number for attempt in file_reader(path).lives([1])[0].attempts] == [1]


async def test_what_no_column_can_hold_fails_for_its_caller_only(path: Path) -> None:
    async with open_journal_file(path) as journal:
        with pytest.raises(OverflowError):
            await journal.take([message(2**63)], [], NOW)
        assert set(await journal.take([message(1)], [], NOW)) == {1}


async def test_a_clock_put_back_is_remembered_though_the_first_write_after_it_failed(path: Path) -> None:
    """No event is before its message's previous one, by whichever run it is written."""
    back = NOW - 3_600_000_000
    async with open_journal_file(path) as journal:
        await make_ready(journal, 1)
        with pytest.raises(OverflowError):
            await journal.take([message(2**63)], [], back)
        await journal.take([message(2)], [], back)
        await journal.accept(await journal.outbox(0, 10), back)
    async with open_journal_file(path) as journal:
        error = StatusEvent(1, "error", back + 5_000_000, details="no content")
        await journal.change([Transition(entry(1), State.READY, State.FAILED, back, events=(error,))])
        (row,) = await journal.outbox(0, 10)
        assert json.loads(row.body)["timestamp"] == format_instant(NOW)


async def test_no_event_is_before_its_messages_previous_one_just_before_a_wrong_time_is_reached_again(
    path: Path,
) -> None:
    """The clock was put back by ten seconds; nobody noticed, and nothing was written for nine and a half."""
    async with open_journal_file(path) as journal:
        await make_ready(journal, 1)
        at = NOW - 500_000
        error = StatusEvent(1, "error", at, details="no content")
        await journal.change([Transition(entry(1), State.READY, State.FAILED, at, events=(error,))])
        (row,) = await journal.outbox(0, 10)
        assert json.loads(row.body)["timestamp"] == format_instant(NOW)


@pytest.mark.slow
async def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room_again(path: Path) -> None:
    async with open_journal_file(path) as journal:
        await make_ready(journal, 1)
        (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
        journal._db.execute(f"PRAGMA max_page_count = {pages}")
        taken: list[Collection[int]] = []

        async def take() -> None:
            taken.append(await journal.take([message(id_) for id_ in range(2, 5000)], [], NOW))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            while not journal.full:
                await checkpoint()
            with pytest.raises(JournalFull):
                await journal.receive([Receipt("sms", "p1", True, "x" * 10**6, NOW, NOW)])
            assert (await journal.counts()).states == {State.READY: 1}
            journal._db.execute("PRAGMA max_page_count = 1000000")
        assert [len(ids) for ids in taken] == [4998]
        assert not journal.full


def fail_to_sync(_db: Db) -> None:
    """What SQLite says when the disk failed."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    raise error


async def test_what_a_disk_failed_to_do_is_not_asked_of_it_again(path: Path) -> None:
    """After a failure of the disk the journal is of no use until it is opened anew; nothing is lost."""
    async with open_journal_file(path) as journal:
        await make_ready(journal, 1)
        with pytest.raises(JournalError, match="disk I/O error"):
            await journal._commit(fail_to_sync)
        with pytest.raises(JournalError, match="disk I/O error"):
            await journal.take([message(2)], [], NOW)
    async with open_journal_file(path) as journal:
        assert (await journal.counts()).states == {State.READY: 1}


async def test_what_waits_while_the_disk_fails_is_not_asked_of_it_any_more(path: Path) -> None:
    """Nothing is acknowledged behind a commit that failed, though it had been asked for before."""
    begun, go_on = threading.Event(), threading.Event()

    def fail_late(db: Db) -> None:
        begun.set()
        go_on.wait()
        fail_to_sync(db)

    async def fails(commit: Awaitable[object]) -> None:
        with pytest.raises(JournalError, match="disk I/O error"):
            await commit

    async with open_journal_file(path) as journal, anyio.create_task_group() as tasks:
        tasks.start_soon(fails, journal._commit(fail_late))
        while not begun.is_set():
            await checkpoint()
        tasks.start_soon(fails, journal.take([message(1)], [], NOW))
        while not journal._waiting:
            await checkpoint()
        go_on.set()
    async with open_journal_file(path) as journal:
        assert (await journal.counts()).states == {}


async def test_behind_a_failure_of_the_disk_nothing_else_of_a_shared_commit_is_tried(path: Path) -> None:
    """An operation that fails has the others tried one by one, until the disk fails."""

    def fail_alone(_db: Db) -> None:
        raise ValueError("mine alone")

    async def fails(expected: type[Exception], commit: Awaitable[object]) -> None:
        with pytest.raises(expected):
            await commit

    async with open_journal_file(path) as journal, anyio.create_task_group() as tasks:
        for expected, commit in (
            (ValueError, journal._commit(fail_alone)),
            (JournalError, journal._commit(fail_to_sync)),
            (JournalError, journal.take([message(1)], [], NOW)),
        ):
            tasks.start_soon(fails, expected, commit)
            await anyio.wait_all_tasks_blocked()
    async with open_journal_file(path) as journal:
        assert (await journal.counts()).states == {}


async def test_a_cancelled_caller_disturbs_nobody(path: Path) -> None:
    async with open_journal_file(path) as journal:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await journal.take([message(1)], [], NOW)
        assert set(await journal.take([message(2)], [], NOW)) == {2}


# the file


async def test_nobody_else_may_read_the_journal(path: Path) -> None:
    """The folder is made 0700, every file in it 0600, whatever the umask leaves."""
    before = os.umask(0)
    try:
        async with open_journal_file(path) as journal:
            await journal.take([message(1)], [], NOW)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    names = ("journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock")
    assert modes == dict.fromkeys(names, 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_a_foreign_database_is_refused_and_left_untouched(path: Path, mode: str) -> None:
    before = a_database(path, f"PRAGMA journal_mode = {mode}; CREATE TABLE theirs (x)")
    assert "no journal of deliveryd" in await refusal(path)
    assert read(path) == before
    assert {file.name for file in path.parent.iterdir()} == {"journal.db", "journal.db.lock"}


async def test_a_file_that_is_no_database_is_refused_and_left_untouched(path: Path) -> None:
    before = a_file(path, b"id,name\n1,Ann\n")
    assert re.search(r"journal\.db can't be used as a journal: the file is no database", await refusal(path))
    assert read(path) == before


async def test_a_damaged_journal_is_refused_and_left_untouched(path: Path) -> None:
    """It may hold what no other file does, so nobody begins anew over it."""
    async with open_journal_file(path) as journal:
        await make_ready(journal, 1)
    sound = read(path)
    damaged = a_file(path, sound[:100] + b"\xff" * 3996 + sound[4096:])
    assert "It is left as it is: move it away" in await refusal(path)
    assert read(path) == damaged


async def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    a_file(path, b"")
    async with open_journal_file(path) as journal:
        assert set(await journal.take([message(1)], [], NOW)) == {1}


@pytest.mark.parametrize("name", ["folder", "file/journal.db"], ids=["a folder", "below a file"])
async def test_a_place_where_no_file_can_be_is_named(tmp_path: Path, name: str) -> None:
    tmp_path.joinpath("folder").mkdir()
    tmp_path.joinpath("file").touch()
    assert f"{tmp_path / name} can't be used as a journal: " in await refusal(tmp_path / name)


# the lock


@pytest.mark.slow
async def test_a_second_process_is_refused_and_told_who_has_the_journal(path: Path) -> None:
    command = [sys.executable, "-c", SECOND_PROCESS, str(path)]
    async with open_journal_file(path) as journal:
        second = await anyio.run_process(command)
        assert second.stdout.decode().startswith("JournalLocked the journal is in use by another deliveryd")
        assert f"(process {os.getpid()})" in second.stdout.decode()
        await journal.take([message(1)], [], NOW)
    assert (await anyio.run_process(command)).stdout == b"opened\n"


async def test_a_journal_is_locked_within_one_process_too(path: Path) -> None:
    async with open_journal_file(path):
        with pytest.raises(JournalLocked):
            async with open_journal_file(path):
                pass


async def test_receipts_find_their_messages_where_somebody_had_the_file_analysed(path: Path) -> None:
    """With statistics SQLite up to 3.40 doesn't find rows of a join by the expression of an index."""
    async with open_journal_file(path) as journal:
        await deliver_to_sent(journal, 1, "p1")
        await deliver_to_sent(journal, 2, "p2")
        with closing(sqlite3.connect(path)) as other:
            other.execute("ANALYZE")
        assert await receive_all(journal, [sample_receipt("p1")]) == ["matched"]
    async with open_journal_file(path) as journal:
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT * FROM sqlite_stat1").fetchall() == []
        assert await receive_all(journal, [sample_receipt("p2")]) == ["matched"]
