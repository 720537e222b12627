"""The providers' own words, which may quote texts and numbers, leave the journal with the variables."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.model import Confirmation, Outcome, Transition
from deliveryd.states import State
from journal.samples import (
    NOW,
    ONE_SECOND,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    decide_on,
    echoed_receipt,
    key_of,
    make_ready,
    sample_receipt,
)
from support.postgres import new_database

pytestmark = pytest.mark.anyio
WORDS = "can't send 'Your code is 4821' to Ann, +447700900123"
_BOTH = "SELECT m.variables, u.words FROM main.message m JOIN main.unaccepted u ON u.message_id = m.id"

Query = Callable[[str], Sequence[tuple[Any, ...]]]
"""Reads a journal that was closed."""


class Place:
    """Where a journal is: how it is opened, and how it is read afterwards."""

    def __init__(self, opened: Callable[[bool], AbstractAsyncContextManager[Journal]], query: Query) -> None:
        self.opened = opened
        self.query = query


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        path = tmp_path / "journal.db"

        def query_file(statement: str) -> Sequence[tuple[Any, ...]]:
            with sqlite3.connect(path) as db:
                return db.execute(statement).fetchall()

        return Place(lambda keeps: open_journal_file(path, keep_variables=keeps), query_file)
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")

    @asynccontextmanager
    async def opened(keeps: bool) -> AsyncIterator[Journal]:
        async with open_shared_journal(JournalDatabase(url), keep_variables=keeps) as journal:
            await journal.recover(NOW, ["sms"])
            yield journal

    def query_database(statement: str) -> Sequence[tuple[Any, ...]]:
        with psycopg.connect(url) as db:
            return db.execute(statement.encode()).fetchall()

    return Place(opened, query_database)


async def tried_once(
    journal: Journal, verdict: Outcome, *, doubt: bool = False, after: State = State.WAITING
) -> None:
    """Message 7 waits, or is held, after a try about which the provider said something."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))
    entry = attempt_on(7)._replace(doubt=doubt)
    due_at = NOW + ONE_SECOND if after is State.WAITING else None
    await journal.change([Transition(entry, State.SENDING, after, NOW, due_at, outcome=verdict)])


async def repeated(journal: Journal, confirmation: Confirmation | None = None) -> None:
    """The provider says 503 first, and accepts the repeat."""
    await tried_once(journal, Outcome("try_again", None, "status 503", WORDS))
    await journal.due(NOW + 2 * ONE_SECOND, {"sms": 10})
    again = attempt_on(7, number=2)
    await begin_attempts(journal, again)
    await journal.change([accepted_step(again, "p1")._replace(confirmation=confirmation)])


async def sent_by_a_repeat(journal: Journal) -> None:
    await repeated(journal)


async def sent_by_the_next_provider(journal: Journal) -> None:
    """Another one refuses it first."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))
    left = attempt_on(7).given_up("refused")
    refused = Outcome("refused", None, "status 400", WORDS)
    await journal.change([Transition(left, State.SENDING, State.READY, NOW + 1, outcome=refused)])
    entry = left.begun("email", b"87654321", NOW + 2)
    await begin_attempts(journal, entry)
    await journal.change([accepted_step(entry, "e1")])


async def settled_by_a_receipt(journal: Journal) -> None:
    await tried_once(journal, Outcome("in_doubt", None, "status 502", WORDS), doubt=True)
    await journal.receive([echoed_receipt(key_of(journal))])


async def settled_by_an_operator(journal: Journal) -> None:
    verdict = Outcome("in_doubt", None, "status 502", WORDS)
    await tried_once(journal, verdict, doubt=True, after=State.IN_DOUBT)
    await decide_on(journal, Action.SETTLE_SENT, ItemKind.MESSAGE, 7)


async def confirmed_later(journal: Journal) -> None:
    """Until then it could have gone on to another channel."""
    await repeated(journal, Confirmation(None, None, True))
    await journal.receive([sample_receipt("p1")])


async def awaited_in_vain(journal: Journal) -> None:
    """Its provider is no longer configured: no receipt sends it on."""
    await repeated(journal, Confirmation(ONE_SECOND, ONE_SECOND, False))
    await accept_all(journal)
    await journal.pass_deadlines(0, NOW, [], 10)


Way = Callable[[Journal], Awaitable[None]]
WAYS: list[Way] = [
    sent_by_a_repeat,
    sent_by_the_next_provider,
    settled_by_a_receipt,
    settled_by_an_operator,
    confirmed_later,
    awaited_in_vain,
]


@pytest.mark.parametrize("way", WAYS)
async def test_words_are_emptied_with_the_variables(place: Place, way: Way) -> None:
    """When the message is sent and can't go on any more, by whatever step."""
    async with place.opened(False) as journal:
        await way(journal)
    assert place.query(_BOTH) == [(None, None)]


@pytest.mark.parametrize("way", WAYS)
async def test_with_keep_variables_both_stay(place: Place, way: Way) -> None:
    async with place.opened(True) as journal:
        await way(journal)
    assert place.query(_BOTH) == [("{}", WORDS)]


async def test_words_of_what_may_still_go_on_stay(place: Place) -> None:
    """A receipt may send it to the next channel, which needs the variables."""
    async with place.opened(False) as journal:
        await repeated(journal, Confirmation(None, None, True))
    assert place.query(_BOTH) == [("{}", WORDS)]


async def test_words_of_what_was_not_sent_stay(place: Place) -> None:
    """`explain` shows why a message waits or failed."""
    async with place.opened(False) as journal:
        await tried_once(journal, Outcome("try_again", None, "status 503", WORDS))
    assert place.query(_BOTH) == [("{}", WORDS)]
