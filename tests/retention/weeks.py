"""Weeks of a journal in PostgreSQL: each day's load, and beside it the deletion of what is old."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import anyio
import psycopg

from deliveryd.journal.journal import Journal
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from retention.load import BATCH, DAY, FIRST_DAY, SECOND, Tally, live_a_day
from retention.sizes import Sizes, measure

PORTION = 100
PROVIDERS = ("sms", "email")
STRIDE = 10_000_000
"""Between the ids of one worker's messages and the next one's."""


class Weeks(NamedTuple):
    """What is lived through: days, batches of each, and after how many days what ended is forgotten.

    So many workers share the database, each with as many batches.
    """

    days: int
    batches: int
    retention: int
    workers: int = 1

    @property
    def messages(self) -> int:
        """How many messages are taken in all."""
        return self.days * self.batches * self.workers * BATCH

    @property
    def stay(self) -> int:
        """Days for which some messages wait, and refused events aren't retried: more than the retention."""
        return self.retention + 2

    @property
    def steady(self) -> int:
        """The first day, counted from 0, on which as many messages are deleted as are taken."""
        return self.stay + self.retention


async def live_through(source: JournalDatabase, weeks: Weeks) -> tuple[Sequence[Sizes], Sequence[Tally]]:
    """Live through them; return the sizes after each day. Raises AssertionError if any is missing."""
    tallies = [Tally(numbers=itertools.count(number * STRIDE + 1)) for number in range(weeks.workers)]
    sizes: list[Sizes] = []
    async with AsyncExitStack() as stack:
        admin = stack.enter_context(psycopg.connect(source.url, autocommit=True))
        journals = [await stack.enter_async_context(open_shared_journal(source)) for _ in tallies]
        for journal in journals:
            await journal.recover(FIRST_DAY, PROVIDERS)
        for day in range(weeks.days):
            before = FIRST_DAY + (day - weeks.retention) * DAY
            async with anyio.create_task_group() as tasks:
                for journal, tally in zip(journals, tallies, strict=True):
                    tasks.start_soon(live_a_day, journal, day, weeks.batches, weeks.stay, tally)
                    tasks.start_soon(_forget, journal, before)
            await _forget(journals[0], before + SECOND)
            assert (await journals[0].account()).gap == 0
            sizes.append(measure(admin, day + 1))
        taken = (await journals[0].account()).taken
        assert taken == sum(tally.taken for tally in tallies) == weeks.messages
    return sizes, tallies


async def _forget(journal: Journal, before: int) -> None:
    """Forget as the worker does each minute, three times while a day goes by."""
    for _ in range(3):
        pruned = 1
        while pruned:
            pruned = await journal.prune(before, PORTION)
