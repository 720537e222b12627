"""The conformance table of journals, run for each journal there is.

What a journal must do is in the docstrings of `deliveryd.journal.base.Journal`, and what commands read of one
in those of `deliveryd.journal.reader.Reader`. The table uses these protocols alone, so it doesn't check what
needs another process: durability over a kill, locks, damaged files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sqlite.journal import open_journal_file
from journal.attention import AttentionCases
from journal.auditing import AuditCases
from journal.beginning_anew import BeginningAnewCases
from journal.counting import CountingCases
from journal.deadlines import DeadlineCases
from journal.delivery import DeliveryCases
from journal.devices import DeviceCases
from journal.intake import IntakeCases
from journal.listing import ListingCases
from journal.orders import OrderCases
from journal.pauses import PauseCases
from journal.protocol import OpenJournal, OpenReader
from journal.reading import ReadingCases
from journal.receipt_keys import ReceiptKeyCases
from journal.receipts import ReceiptCases
from journal.removal import RemovalCases
from journal.reporting import ReportingCases
from journal.reports import ReportCases
from journal.upkeep import UpkeepCases
from support.postgres import new_database


class RecordingConformance(
    IntakeCases,
    ReportingCases,
    DeliveryCases,
    ReceiptCases,
    ReceiptKeyCases,
    DeadlineCases,
    OrderCases,
    BeginningAnewCases,
    PauseCases,
    RemovalCases,
    ReportCases,
    UpkeepCases,
    CountingCases,
):
    """What every journal must record; each subclass says how its journal is opened.

    Checked: that a new message is taken once, with its `dequeued`, and a repeat is reported again; the order
    of the outbox, and what acceptance and refusal lead to; that illegal steps change nothing; that progress
    survives a restart; what is due, and when; what a receipt matches, what it leads to in every state, and
    what follows if none comes; reports on the way, unreadable ones, and stopped recipients; operators'
    orders, and what they pause; messages that begin anew or are forgotten; a provider that is removed;
    recovery, sums and pruning; what budgets and caps count.
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop: asyncio, on which the worker runs."""
        return "asyncio"


class JournalConformance(
    RecordingConformance, ReadingCases, AttentionCases, ListingCases, AuditCases, DeviceCases
):
    """The same, and what commands read of it and an audit finds; each subclass says how it is read, too."""


class TestSqlite(JournalConformance):
    """The embedded journal, on both event loops."""

    @pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda: open_journal_file(tmp_path / "journal.db")

    @pytest.fixture
    def open_reader(self, tmp_path: Path) -> OpenReader:
        return lambda: file_reader(tmp_path / "journal.db")


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
    def open_journal(self, database: JournalDatabase) -> OpenJournal:
        return lambda: open_shared_journal(database)

    @pytest.fixture
    def open_reader(self, database: JournalDatabase) -> OpenReader:
        return lambda: database_reader(database)
