"""The fixtures of the cases: how the journal under test is opened, and how it is read beside that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from deliveryd.journal.journal import Journal
from deliveryd.journal.reader import Reader

OpenJournal = Callable[[], AbstractAsyncContextManager[Journal]]
"""`open_journal`: opens the same journal each time; what one block recorded is there in the next."""

OpenReader = Callable[[], Reader]
"""`open_reader`: reads the journal that `open_journal` opens."""
