"""The conformance table of journals: what was recorded is durable, exact, and in order.

Subclass `JournalConformance`, and supply the fixtures `open_journal` and `open_reader`:

    class TestMyJournal(JournalConformance):
        @pytest.fixture
        def open_journal(self, tmp_path):
            return lambda: MyJournal.open(tmp_path / "journal.db")

        @pytest.fixture
        def open_reader(self, tmp_path):
            return lambda: MyReader(tmp_path / "journal.db")

What a journal must do is in the docstrings of `deliveryd.journal.base.Journal`, and what commands read of one
in those of `deliveryd.journal.reader.Reader`. The table uses these protocols alone, so it doesn't check what
needs another process: durability over a kill, locks, damaged files.
"""

from __future__ import annotations

import pytest

from deliveryd.testing.journal_cases.attention import AttentionCases
from deliveryd.testing.journal_cases.auditing import AuditCases
from deliveryd.testing.journal_cases.beginning_anew import BeginningAnewCases
from deliveryd.testing.journal_cases.deadlines import DeadlineCases
from deliveryd.testing.journal_cases.delivery import DeliveryCases
from deliveryd.testing.journal_cases.intake import IntakeCases
from deliveryd.testing.journal_cases.listing import ListingCases
from deliveryd.testing.journal_cases.orders import OrderCases
from deliveryd.testing.journal_cases.pauses import PauseCases
from deliveryd.testing.journal_cases.reading import ReadingCases
from deliveryd.testing.journal_cases.receipt_keys import ReceiptKeyCases
from deliveryd.testing.journal_cases.receipts import ReceiptCases
from deliveryd.testing.journal_cases.removal import RemovalCases
from deliveryd.testing.journal_cases.reporting import ReportingCases
from deliveryd.testing.journal_cases.reports import ReportCases
from deliveryd.testing.journal_cases.upkeep import UpkeepCases


class JournalConformance(
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
    ReadingCases,
    AttentionCases,
    ListingCases,
    AuditCases,
    UpkeepCases,
):
    """What every journal must do. Subclass it as `Test…`; see this module for the lines.

    Supply the fixture `open_journal`, which returns an `OpenJournal`: a function without arguments that
    returns an async context manager of a `Journal`, and opens the same journal each time within one test; and
    `open_reader`, which returns an `OpenReader`: a function that returns a `Reader` of that journal.
    Override `anyio_backend` to run on trio as well.

    Checked: that a new message is taken once, with its `dequeued`, and a repeat is reported again; the order
    of the outbox, and what acceptance and refusal lead to; that illegal steps change nothing; that progress
    survives a restart; what is due, and when; what a receipt matches, what it leads to in every state, and
    what follows if none comes; reports on the way, unreadable ones, and stopped recipients; operators'
    orders, and what they pause; messages that begin anew or are forgotten; a provider that is removed; what
    commands read, and what an audit finds; recovery, sums and pruning.
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop: asyncio, on which the worker runs."""
        return "asyncio"
