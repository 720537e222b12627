"""The journal's format: upgraded in one transaction, and refused where it is unknown.

There is no upgrade yet. These tests append their own to a copy of `FILE_UPGRADES`.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from deliveryd.errors import JournalError
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sqlite.format import check_header, check_latest, check_supported, prepare_file
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.journal.sqlite.upgrades import FILE_UPGRADES, latest_format
from deliveryd.model import QueuedMessage

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000_000_000

LATEST = latest_format(FILE_UPGRADES)
NEXT = LATEST + 1
PRIORITY = "ALTER TABLE message ADD COLUMN priority INTEGER; UPDATE message SET priority = id * 10"
WITH_PRIORITY = (*FILE_UPGRADES, PRIORITY)
FILLED = f"{PRIORITY}; CREATE TABLE filler AS SELECT zeroblob(8000000)"
"""More than SQLite's cache holds, so that a part of the transaction is in the log before it is committed."""

CRASHING_PROCESS = """
import os, signal, sqlite3, sys
from deliveryd.journal.sqlite.format import prepare_file
from deliveryd.journal.sqlite.upgrades import FILE_UPGRADES

db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.create_function("crash", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
prepare_file(db, (*FILE_UPGRADES, sys.argv[2] + "; SELECT crash()"))
"""


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A journal of the latest format, with one message."""
    path = tmp_path / "state" / "journal.db"
    async with open_journal_file(path) as journal:
        await journal.take([QueuedMessage(7, 1, 1, {"text": "x"})], [], NOW)
    return path


def upgraded(path: Path, upgrades: Sequence[str]) -> None:
    check_header(path, upgrades)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        prepare_file(db, upgrades)
        check_latest(db, upgrades)


def read(path: Path) -> bytes:
    return path.read_bytes()


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(statement).fetchall()


def version_of(path: Path) -> object:
    return query(path, "PRAGMA user_version")[0][0]


async def test_the_first_release_has_format_1(path: Path) -> None:
    assert (version_of(path), FILE_UPGRADES) == (1, ())


async def test_an_upgrade_changes_the_tables_and_keeps_what_is_in_them(path: Path) -> None:
    upgraded(path, WITH_PRIORITY)
    assert version_of(path) == NEXT
    assert query(path, "SELECT id, variables, priority FROM message") == [(7, '{"text":"x"}', 70)]


async def test_several_upgrades_are_applied_in_their_order(path: Path) -> None:
    upgraded(path, (*WITH_PRIORITY, "UPDATE message SET priority = priority + 1"))
    assert version_of(path) == NEXT + 1
    assert query(path, "SELECT priority FROM message") == [(71,)]


async def test_an_upgrade_is_applied_once(path: Path) -> None:
    for _ in range(2):
        upgraded(path, (*FILE_UPGRADES, "UPDATE message SET tries = tries + 1"))
    assert query(path, "SELECT tries FROM message") == [(1,)]


async def test_a_new_journal_has_the_latest_format_without_any_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    upgraded(path, (*FILE_UPGRADES, "this is no SQL"))
    assert version_of(path) == NEXT


@pytest.mark.parametrize("last", ["this is no SQL", "INSERT INTO message (id) VALUES (7)"])
async def test_an_upgrade_that_fails_changes_nothing(path: Path, last: str) -> None:
    """Also where an earlier one of several succeeds."""
    with pytest.raises(sqlite3.Error):
        upgraded(path, (*WITH_PRIORITY, last))
    await assert_untouched(path)


@pytest.mark.slow
async def test_a_crash_in_an_upgrade_leaves_the_earlier_format_usable(path: Path) -> None:
    """The process is killed within the transaction, with a part of it in the log."""
    process = await anyio.run_process(
        [sys.executable, "-c", CRASHING_PROCESS, str(path), FILLED], check=False
    )
    assert process.returncode == -signal.SIGKILL
    assert path.with_name("journal.db-wal").stat().st_size > 1_000_000
    await assert_untouched(path)
    upgraded(path, WITH_PRIORITY)
    assert query(path, "SELECT priority FROM message") == [(70,), (80,)]


async def assert_untouched(path: Path) -> None:
    """The journal has the format from before the upgrade, and takes another message."""
    assert file_reader(path).lives([7])[0].is_known
    async with open_journal_file(path) as journal:
        assert set(await journal.take([QueuedMessage(7, 1, 1, {}), QueuedMessage(8, 1, 1, {})], [], NOW)) == {
            8
        }
    assert file_reader(path).audit().is_balanced
    assert version_of(path) == LATEST
    assert "priority" not in {
        name for (name,) in query(path, "SELECT name FROM pragma_table_info('message')")
    }


async def test_a_reader_refuses_an_earlier_format_until_the_worker_has_upgraded_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        check_supported(db, WITH_PRIORITY)  # what `deliveryd check` asks
        with pytest.raises(JournalError, match=f"format {LATEST}, .* reads format {NEXT}: start the worker"):
            check_latest(db, WITH_PRIORITY)


@pytest.mark.parametrize("version", [0, NEXT, 99], ids=["none", "next", "later"])
async def test_an_unknown_format_is_refused_and_left_untouched(path: Path, version: int) -> None:
    query(path, f"PRAGMA user_version = {version}")
    before = read(path)
    expected = f"has format {version}, and this deliveryd supports formats up to {LATEST}: run the version"
    with pytest.raises(JournalError, match=expected):
        async with open_journal_file(path):
            pass
    with pytest.raises(JournalError, match=expected):
        file_reader(path).lives([7])[0]
    assert read(path) == before


@pytest.mark.parametrize("version", [1, NEXT])
async def test_a_foreign_database_is_refused_whatever_its_version(tmp_path: Path, version: int) -> None:
    """Its version is its own; no upgrade is applied to it."""
    path = tmp_path / "journal.db"
    query(path, f"PRAGMA user_version = {version}")
    query(path, "CREATE TABLE theirs (x)")
    before = read(path)
    with pytest.raises(JournalError, match="no journal of deliveryd"):
        upgraded(path, WITH_PRIORITY)
    with closing(sqlite3.connect(path)) as db, pytest.raises(JournalError, match="no journal of deliveryd"):
        prepare_file(db, WITH_PRIORITY)
    assert read(path) == before
