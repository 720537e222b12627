"""The providers' own words, which may quote texts and numbers, leave the journal with the variables."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg
import pytest

from deliveryd.journal.base import Journal
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.sqlite import open_journal_file
from deliveryd.model import Outcome, Transition
from deliveryd.states import State
from deliveryd.testing.journal_cases.samples import (
    NOW,
    ONE_SECOND,
    accepted_step,
    attempt_on,
    begin_attempts,
    echoed_receipt,
    key_of,
    make_ready,
)
from support.postgres import new_database

pytestmark = pytest.mark.anyio
WORDS = "can't send 'Your code is 4821' to Ann, +447700900123"


async def tried_once(journal: Journal, verdict: Outcome, *, doubt: bool) -> None:
    """Message 7 waits after a try about which the provider said something."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))
    entry = attempt_on(7)._replace(doubt=doubt)
    await journal.change(
        [Transition(entry, State.SENDING, State.WAITING, NOW, NOW + ONE_SECOND, outcome=verdict)]
    )


async def sent_by_a_repeat(journal: Journal) -> None:
    await tried_once(journal, Outcome("try_again", None, "status 503", WORDS), doubt=False)
    await journal.due(NOW + 2 * ONE_SECOND, {"sms": 10})
    again = attempt_on(7, number=2)
    await begin_attempts(journal, again)
    await journal.change([accepted_step(again, "p1")])


async def settled_by_a_receipt(journal: Journal) -> None:
    await tried_once(journal, Outcome("in_doubt", None, "status 502", WORDS), doubt=True)
    await journal.receive([echoed_receipt(key_of(journal))])


WAYS = [sent_by_a_repeat, settled_by_a_receipt]
Way = Callable[[Journal], Awaitable[None]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keeps", [False, True])
async def test_words_are_emptied_with_the_variables(tmp_path: Path, way: Way, keeps: bool) -> None:
    """When the message is sent, by whatever step; with journal.keep_variables both stay."""
    path = tmp_path / "journal.db"
    async with open_journal_file(path, keep_variables=keeps) as journal:
        await way(journal)
    with sqlite3.connect(path) as db:
        rows = db.execute(
            "SELECT m.variables, u.words FROM message m JOIN unaccepted u ON u.message_id = m.id"
        )
        assert rows.fetchall() == [("{}", WORDS) if keeps else (None, None)]


async def test_words_of_what_was_not_sent_stay(tmp_path: Path) -> None:
    """`explain` shows why a message waits or failed."""
    path = tmp_path / "journal.db"
    async with open_journal_file(path) as journal:
        await tried_once(journal, Outcome("try_again", None, "status 503", WORDS), doubt=False)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT words FROM unaccepted").fetchall() == [(WORDS,)]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.xfail(strict=True, reason="mended with 'One journal': words stay in PostgreSQL's journal")
async def test_words_are_emptied_in_a_database_too(way: Way) -> None:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    async with open_shared_journal(JournalDatabase(url)) as journal:
        await journal.recover(NOW, ["sms"])
        await way(journal)
    with psycopg.connect(url) as db:
        assert db.execute("SELECT words FROM unaccepted").fetchall() == [(None,)]
