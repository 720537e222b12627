"""The conformance table of journals, run for each journal there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reader import PostgresqlReader
from deliveryd.journal.sqlite import open_journal_file
from deliveryd.journal.sqlite_reader import SqliteReader
from deliveryd.testing.journal_cases.protocol import OpenJournal
from deliveryd.testing.journal_cases.reading import OpenReader
from deliveryd.testing.journals import JournalConformance
from memory_postgres import new_database as new_model
from memory_postgres import standing_in
from support.postgres import new_database


class TestSqlite(JournalConformance):
    """The embedded journal, on both event loops."""

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda: open_journal_file(tmp_path / "journal.db")

    @pytest.fixture
    def open_reader(self, tmp_path: Path) -> OpenReader:
        return lambda: SqliteReader(tmp_path / "journal.db")


@pytest.fixture
def database() -> JournalDatabase:
    """An empty database of a real PostgreSQL."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


@pytest.mark.slow
class TestPostgresql(JournalConformance):
    """The shared journal. The loop that commits is the file's, which runs on both event loops above."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def open_journal(self, database: JournalDatabase) -> OpenJournal:
        return lambda: open_shared_journal(database)

    @pytest.fixture
    def open_reader(self, database: JournalDatabase) -> OpenReader:
        return lambda: PostgresqlReader(database)


class TestMemory(JournalConformance):
    """The shared journal on the server in memory, which the simulation of several workers has."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def database(self) -> Iterator[JournalDatabase]:
        with standing_in():
            yield JournalDatabase(new_model())

    @pytest.fixture
    def open_journal(self, database: JournalDatabase) -> OpenJournal:
        return lambda: open_shared_journal(database)

    @pytest.fixture
    def open_reader(self, database: JournalDatabase) -> OpenReader:
        return lambda: PostgresqlReader(database)
