"""An answer lets messages go on, also those that another worker of the journal holds in that moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from deliveryd import transitions
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.lease import fence, live_workers
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.runtime import waits
from journal.samples import NOW, ONE_SECOND, make_ready, sample_entry
from support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SMS = ["sms"]
SETTINGS = waits.settings(4)
IDS = [1, 2, 3]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


@pytest.fixture
async def journal(source: JournalDatabase) -> AsyncIterator[PostgresqlJournal]:
    """Three messages wait in it for an answer, for an hour at most."""
    async with open_shared_journal(source) as journal:
        await journal.recover(NOW, SMS)
        await make_ready(journal, *IDS)
        until = NOW + 3600 * ONE_SECOND
        await journal.change([transitions.deferred(sample_entry(id_), NOW, until, SETTINGS) for id_ in IDS])
        yield journal


@contextmanager
def held(source: JournalDatabase, *ids: int) -> Iterator[None]:
    """Another worker brings due times in line with its clock, and hasn't committed that yet."""
    with psycopg.connect(source.url) as db:
        db.execute("UPDATE waiting SET due_at = due_at - 1 WHERE id = ANY(%s)", (list(ids),))
        yield


async def due(journal: PostgresqlJournal) -> list[int]:
    return [entry.id for entry in (await journal.due(NOW, {"": 10})).entries]


async def test_what_another_worker_held_in_the_moment_of_an_answer_goes_on_at_the_next_look(
    source: JournalDatabase, journal: PostgresqlJournal
) -> None:
    with held(source, 2):
        assert await journal.wake([SETTINGS], NOW, 10) == 2
        assert await due(journal) == [1, 3]
        await journal.follow(NOW, SMS)
        assert await due(journal) == []
    await journal.follow(NOW, SMS)
    assert await due(journal) == [2]


async def test_no_more_of_them_go_on_than_were_to(
    source: JournalDatabase, journal: PostgresqlJournal
) -> None:
    """A few are let go as probes; the others wait for what becomes of these."""
    with held(source, 1):
        assert await journal.wake([SETTINGS], NOW, 1) == 1
    await journal.follow(NOW, SMS)
    assert len(await due(journal)) == 1
    await journal.follow(NOW, SMS)
    assert await due(journal) == []


async def test_what_others_hold_is_in_nobodys_way(
    source: JournalDatabase, journal: PostgresqlJournal
) -> None:
    """However many are held, the next portion is what they don't hold, and then there is no more."""
    with held(source, 1, 2):
        first, second = [await journal.wake([SETTINGS], NOW, 2) for _ in range(2)]
        third = await journal.wake([SETTINGS], NOW, 2)
        assert (first + second, third) in {(3, 0), (4, 0)}
        assert await due(journal) == [3]
    await journal.follow(NOW, SMS)
    assert await due(journal) == [1, 2]


async def test_what_two_answers_missed_goes_on_after_both(
    source: JournalDatabase, journal: PostgresqlJournal
) -> None:
    with held(source, 1), held(source, 2):
        await journal.wake([SETTINGS], NOW, 10)
        await journal.wake([SETTINGS, waits.settings(5)], NOW, 1)
    await journal.follow(NOW, SMS)
    assert await due(journal) == IDS


async def test_what_another_worker_let_go_on_lets_nothing_go_on_that_came_later(
    source: JournalDatabase, journal: PostgresqlJournal
) -> None:
    """The later ones wait for a later answer."""
    with psycopg.connect(source.url) as db:
        db.execute("UPDATE waiting SET due_at = %s, waits_for = NULL WHERE id = 1", (NOW,))
        assert await journal.wake([SETTINGS], NOW, 10) == 2
    await make_ready(journal, 4)
    await journal.change([transitions.deferred(sample_entry(4), NOW, NOW + 3600 * ONE_SECOND, SETTINGS)])
    await journal.follow(NOW, SMS)
    assert await due(journal) == IDS


async def test_what_waited_for_an_answer_to_a_worker_that_ended_is_asked_for_though_another_one_held_it(
    source: JournalDatabase, journal: PostgresqlJournal
) -> None:
    async with open_shared_journal(source) as other:
        await other.recover(NOW, SMS)
        with held(source, 2), psycopg.connect(source.url) as db:
            assert fence(db, live_workers(db)[0])
        assert await due(other) == [1, 3]
        await other.follow(NOW, SMS)
        assert await due(other) == [2]
        with psycopg.connect(source.url) as db:
            assert not db.execute("SELECT 1 FROM meta WHERE key LIKE 'unasked%%'", ()).fetchall()
