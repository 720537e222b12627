"""Reading a journal: beside a worker, without one, and where there is no journal."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.errors import JournalError
from deliveryd.journal.reader import file_reader
from deliveryd.journal.service_adoption import read_service
from deliveryd.journal.sql.history import without_values
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.journal.sqlite.lock import lock_owner
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import (
    Entry,
    Malformed,
    Outcome,
    QueuedMessage,
    Receipt,
    StatusEvent,
    Transition,
    message_key,
)
from deliveryd.states import State

pytestmark = pytest.mark.anyio

NOW = 1_790_000_000_000_000
MESSAGE = QueuedMessage(5, 7, 1, {"word": "secret word"})
ENTRY = Entry(5, 7, 1, MESSAGE.variables)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def take(journal: SqliteJournal) -> None:
    await journal.take([MESSAGE], [], NOW)
    await journal.accept(await journal.outbox(0, 10), NOW + 1)


async def send(journal: SqliteJournal) -> None:
    entry = ENTRY._replace(provider="sms", stay_tries=1)
    await journal.change([Transition(entry, State.READY, State.SENDING, NOW + 2)])
    sent = StatusEvent(5, "sent", NOW + 3)
    outcome = Outcome("accepted", "p-1")
    await journal.change(
        [Transition(entry, State.SENDING, State.SENT, NOW + 3, outcome=outcome, events=(sent,))]
    )


async def test_a_message_is_read_beside_a_working_worker(path: Path) -> None:
    """Each commit is visible at once, and neither process blocks the other."""
    async with open_journal_file(path) as journal:
        await take(journal)
        life = file_reader(path).lives([5])[0]
        assert life.message is not None
        assert (life.message.state, life.message.settings_id) == (State.READY, 7)
        await send(journal)
        life = file_reader(path).lives([5])[0]
        assert life.message is not None
        assert life.message.state is State.SENT
        [attempt] = life.attempts
        assert (attempt.key, attempt.provider_id) == (message_key(journal.namespace, 5, "sms", 1), "p-1")
        assert [(event.status, event.settled_at) for event in life.events] == [
            ("dequeued", NOW + 1),
            ("sent", None),
        ]
        await journal.receive([Receipt("sms", "p-1", True, "DELIVRD", NOW, NOW + 9)])
    life = file_reader(path).lives([5])[0]
    assert life.message is not None
    assert life.message.state is State.DELIVERED
    assert [receipt.status for receipt in life.receipts] == ["DELIVRD"]


async def test_reading_a_closed_journal_creates_no_files(path: Path) -> None:
    """No log and no index appear that might belong to the wrong user."""
    async with open_journal_file(path) as journal:
        await take(journal)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert file_reader(path).lives([5])[0].is_known
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


async def test_a_journal_that_a_killed_worker_left_is_read_without_changing_it(
    path: Path, tmp_path: Path
) -> None:
    """What stands only in the log is seen, and the log stays for the next start to take up."""
    left = tmp_path / "left"
    left.mkdir()
    async with open_journal_file(path) as journal:
        await take(journal)
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(f"{path}{suffix}", left)
    log = (left / "journal.db-wal").read_bytes()
    assert log
    life = file_reader(left / "journal.db").lives([5])[0]
    assert life.message is not None
    assert life.message.state is State.READY
    assert (left / "journal.db-wal").read_bytes() == log


async def test_the_lock_owner_is_known_while_the_lock_is_held(path: Path) -> None:
    """Looking it up takes no lock: the journal can be opened during it."""
    assert lock_owner(path) is None
    async with open_journal_file(path):
        assert lock_owner(path) == os.getpid()
    assert lock_owner(path) is None
    async with open_journal_file(path):
        pass


async def test_a_forgotten_message_is_known_by_its_tombstone(path: Path) -> None:
    async with open_journal_file(path) as journal:
        await take(journal)
        await send(journal)
        await journal.accept(await journal.outbox(0, 10), NOW + 4)
        assert await journal.prune(NOW + 1000, 10) == 1
    life = file_reader(path).lives([5])[0]
    assert life.is_known
    assert life.message is None
    assert life.tombstone is not None
    assert '"dequeued"' in str(life.tombstone.dequeued)
    assert '"sent"' in str(life.tombstone.latest)


async def test_malformed_elements_are_part_of_the_record_of_their_id(path: Path) -> None:
    async with open_journal_file(path) as journal:
        await journal.take([], [Malformed('{"id": 6, "variables": "who"}', "no settingsId", 6)], NOW)
    life = file_reader(path).lives([6])[0]
    assert [(bad.reason, bad.raw) for bad in life.malformed] == [
        ("no settingsId", '{"id": 6, "variables": "who"}')
    ]
    assert life.message is not None
    assert life.message.variables is None
    assert [bad.raw for bad in without_values(life).malformed] == [None]


async def test_without_values_the_names_of_variables_remain(path: Path) -> None:
    async with open_journal_file(path) as journal:
        await take(journal)
    life = file_reader(path).lives([5])[0]
    assert life.message is not None
    assert life.message.variables == {"word": "secret word"}
    assert "secret word" not in repr(without_values(life))
    assert "'word': None" in repr(without_values(life))


async def test_an_id_that_was_never_taken_is_unknown(path: Path) -> None:
    async with open_journal_file(path) as journal:
        await take(journal)
    assert not file_reader(path).lives([99])[0].is_known


def test_reading_creates_no_journal(path: Path) -> None:
    with pytest.raises(JournalAbsent, match="deliveryd hasn't run with it yet"):
        file_reader(path).lives([5])[0]
    assert list(path.parent.iterdir()) == []


def test_an_empty_file_counts_as_no_journal(path: Path) -> None:
    path.touch()
    with pytest.raises(JournalAbsent):
        read_service(path)


def test_a_foreign_database_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE guests (name TEXT)")
    db.close()
    with pytest.raises(JournalError, match="no journal of deliveryd"):
        read_service(path)


def test_a_file_that_is_no_database_is_refused_with_its_path(path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(JournalError, match=r"journal\.db can't be read as a journal"):
        file_reader(path).lives([5])[0]


def test_a_journal_below_a_file_is_absent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="Not a directory"):
        file_reader(tmp_path / "file" / "journal.db").lives([5])[0]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.slow
async def test_another_user_is_told_which_user_to_run_the_command_as(open_folder: Path) -> None:
    """The error names the remedy instead of repeating SQLite's words."""
    path = open_folder / "journal.db"
    async with open_journal_file(path) as journal:
        await take(journal)
    if os.geteuid() != 0:
        path.chmod(0)
        assert (
            "can't be read by this user; run the command as the user that deliveryd runs as"
            in _problem_as_nobody(path)
        )
    else:
        assert f"{path} belongs to the user root, but this process runs as nobody" in _problem_as_nobody(path)


def _problem_as_nobody(path: Path) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setuid(65534)
            file_reader(path).lives([5])[0]
        except JournalError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()
