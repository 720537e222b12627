"""The conformance table of journals, run for each journal there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from deliveryd.journal.sqlite import open_journal
from deliveryd.journal.sqlite_reader import SqliteReader
from deliveryd.testing.journal_cases.protocol import OpenJournal
from deliveryd.testing.journal_cases.reading import OpenReader
from deliveryd.testing.journals import JournalConformance


class TestSqlite(JournalConformance):
    """The embedded journal, on both event loops."""

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda: open_journal(tmp_path / "journal.db")

    @pytest.fixture
    def open_reader(self, tmp_path: Path) -> OpenReader:
        return lambda: SqliteReader(tmp_path / "journal.db")
