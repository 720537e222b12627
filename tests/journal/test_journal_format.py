"""The journal's format: refused where it is unknown."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deliveryd.errors import JournalError
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.journal.sqlite.opening import FILE_FORMAT, check_header, prepare_file
from deliveryd.model import QueuedMessage

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000_000_000


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A journal with one message."""
    path = tmp_path / "state" / "journal.db"
    async with open_journal_file(path) as journal:
        await journal.take([QueuedMessage(7, 1, 1, {"text": "x"})], [], NOW)
    return path


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(statement).fetchall()


def read(path: Path) -> bytes:
    return path.read_bytes()


async def test_the_first_release_has_format_1(path: Path) -> None:
    assert query(path, "PRAGMA user_version") == [(1,)]


async def test_the_index_of_what_waits_is_made_anew_in_a_journal_of_0_1_0(path: Path) -> None:
    """The format stays: that release works with either."""
    index = "SELECT sql FROM sqlite_master WHERE name = 'message_held'"
    new = query(path, index)
    query(path, "DROP INDEX message_held")
    query(
        path,
        "CREATE INDEX message_held ON message (waits_for, due_at)"
        " WHERE waits_for IS NOT NULL AND due_at IS NOT NULL",
    )
    async with open_journal_file(path):
        pass
    assert query(path, index) == new
    assert query(path, "PRAGMA user_version") == [(1,)]


@pytest.mark.parametrize("version", [0, FILE_FORMAT + 1, 99], ids=["none", "next", "later"])
async def test_an_unknown_format_is_refused_and_left_untouched(path: Path, version: int) -> None:
    query(path, f"PRAGMA user_version = {version}")
    before = read(path)
    expected = f"has format {version}, and this deliveryd supports format {FILE_FORMAT}: run the version"
    with pytest.raises(JournalError, match=expected):
        async with open_journal_file(path):
            pass
    with pytest.raises(JournalError, match=expected):
        file_reader(path).lives([7])[0]
    assert read(path) == before


@pytest.mark.parametrize("version", [FILE_FORMAT, FILE_FORMAT + 1])
async def test_a_foreign_database_is_refused_whatever_its_version(tmp_path: Path, version: int) -> None:
    """Its version is its own."""
    path = tmp_path / "journal.db"
    query(path, f"PRAGMA user_version = {version}")
    query(path, "CREATE TABLE theirs (x)")
    before = read(path)
    with pytest.raises(JournalError, match="no journal of deliveryd"):
        check_header(path)
    with closing(sqlite3.connect(path)) as db, pytest.raises(JournalError, match="no journal of deliveryd"):
        prepare_file(db)
    assert read(path) == before
