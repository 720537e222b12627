"""What an author supplies to JournalConformance."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from deliveryd.journal.base import Journal

OpenJournal = Callable[[], AbstractAsyncContextManager[Journal]]
"""Opens the same journal each time: what one block recorded is there in the next."""
