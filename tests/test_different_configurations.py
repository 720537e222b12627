"""Workers of one journal in PostgreSQL whose configurations differ, as while a change is rolled out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import psycopg
import pytest

from deliveryd.journal.base import Doubtful, Journal, PassedDeadlines
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reader import PostgresqlReader
from deliveryd.model import Confirmation
from deliveryd.states import State
from journal.samples import (
    NOW,
    ONE_SECOND,
    accepted_step,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    bring_to_wait,
    deliver_to_sent,
    make_ready,
    state_counts,
)
from support.postgres import new_database, pass_time

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SMS, MAIL = ("sms",), ("email",)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


@asynccontextmanager
async def worker(source: JournalDatabase, providers: Sequence[str]) -> AsyncIterator[PostgresqlJournal]:
    """A worker that has started with these providers."""
    async with open_shared_journal(source, lease=20.0) as journal:
        await journal.recover(NOW, providers)
        yield journal


# a provider whose only worker is away


async def test_what_a_restarting_worker_had_under_way_at_its_own_provider_is_left_to_it(
    source: JournalDatabase,
) -> None:
    """Held by one that doesn't have the provider it would wait for an operator instead of its repeat."""
    async with worker(source, MAIL) as mail:
        async with worker(source, SMS) as text:
            await make_ready(text, 1)
            await bring_to_wait(text, 2, NOW, "sms")
            await begin_attempts(text, attempt_on(1))
        for _ in range(3):
            found = (await mail.follow(NOW, MAIL)).adopted
            assert found is None or not found.doubtful
        assert await state_counts(mail) == {State.SENDING: 1, State.WAITING: 1}
        async with open_shared_journal(source) as text:
            left = await text.recover(NOW, SMS)
            assert left.doubtful == [Doubtful(attempt_on(1), State.SENDING)]
            assert [each.id for each in (await text.due(NOW, {"sms": 9})).entries] == [2]


async def test_a_worker_that_starts_meanwhile_leaves_it_as_well(source: JournalDatabase) -> None:
    """Also when the row of the one that is away is deleted, since another one had all that it left."""
    async with worker(source, SMS) as text:
        await bring_to_wait(text, 1, NOW, "sms")
        await bring_in_doubt(text, 2, State.WAITING)
    async with worker(source, MAIL) as mail:
        await mail.follow(NOW, MAIL)
        await mail.follow(NOW, MAIL)
        assert await mail.leave(SMS, NOW, 9) == (0, 0)
        with psycopg.connect(source.url) as admin:
            assert admin.execute("SELECT count(*) FROM worker WHERE id > 0").fetchone() == (1,)
    async with worker(source, MAIL) as mail:
        assert not (await mail.due(NOW, {"": 9, "email": 9})).entries
        assert await state_counts(mail) == {State.WAITING: 2}


async def test_a_provider_that_nobody_had_for_ten_minutes_is_nobodys(source: JournalDatabase) -> None:
    """A live worker notices: what waits there goes elsewhere, and what may have arrived is held."""
    async with worker(source, MAIL) as mail:
        async with worker(source, SMS) as text:
            await bring_to_wait(text, 1, NOW + 60 * ONE_SECOND, "sms")
            await bring_in_doubt(text, 2, State.WAITING)
            await make_ready(text, 3)
            await begin_attempts(text, attempt_on(3))
        pass_time(source.url, 590)
        await mail.follow(NOW, MAIL)
        assert await state_counts(mail) == {State.WAITING: 2, State.SENDING: 1}
        pass_time(source.url, 20)
        adopted = [(await mail.follow(NOW, MAIL)).adopted for _ in range(2)]
        doubtful = [each for found in adopted if found is not None for each in found.doubtful]
        assert doubtful == [Doubtful(attempt_on(3), State.SENDING)]
        assert await state_counts(mail) == {State.WAITING: 1, State.IN_DOUBT: 1, State.SENDING: 1}
        assert [each.id for each in (await mail.due(NOW, {"": 9})).entries] == [1]


# orders


async def test_an_order_about_a_provider_that_another_worker_has_is_carried_out(
    source: JournalDatabase,
) -> None:
    """Whichever worker an operator asks: the one that has the provider follows."""
    async with worker(source, MAIL) as mail, worker(source, SMS) as text:
        await bring_in_doubt(text, 1)
        for order in (
            Order(Action.RESEND, ItemKind.MESSAGE, ("1",)),
            Order(Action.PAUSE, ItemKind.PROVIDER, SMS),
            Order(Action.PAUSE, ItemKind.CHANNEL, SMS),
        ):
            assert (await mail.decide(order, NOW, MAIL)).done == order.keys
        found = await text.follow(NOW, SMS)
        assert found.pauses is not None
        assert [pause.name for pause in found.pauses] == ["channel sms", "provider sms"]
        assert [each.id for each in (await text.due(NOW, {"sms": 9})).entries] == [1]
        refused = await mail.decide(Order(Action.PAUSE, ItemKind.CHANNEL, ("fax",)), NOW, MAIL)
        assert refused.skipped == {"fax": "no such channel is configured"}


# what is overdue


async def test_a_message_is_counted_as_overdue_once_whatever_patience_workers_have(
    source: JournalDatabase,
) -> None:
    """`receipt_overdue` differs: the least patient one counts, and nobody counts again."""
    async with worker(source, SMS) as one, worker(source, SMS) as other:
        for id_ in range(1, 6):
            await deliver_to_sent(one, id_, f"p{id_}")
        found: list[int] = []

        async def count(journal: Journal, until: int) -> None:
            found.append(await journal.count_overdue("sms", None, until))

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for journal in (one, other, one, other):
                    tasks.start_soon(count, journal, NOW + 60 * ONE_SECOND)
            await count(other, NOW + ONE_SECOND)
        assert sum(found) == 5


# receipt deadlines

MINUTE = 60 * ONE_SECOND
TICK = 5 * ONE_SECOND


async def send_to_confirm(journal: Journal, id_: int, by: int, within: int) -> None:
    """A message is sent whose delivery has to be reported until a point of the listening time."""
    await make_ready(journal, id_)
    await begin_attempts(journal, attempt_on(id_))
    step = accepted_step(attempt_on(id_), f"p{id_}")
    await journal.change([step._replace(confirmation=Confirmation(by, within, failed_next=False))])


async def listen(journal: Journal, providers: Sequence[str], duration: int) -> list[PassedDeadlines]:
    """Be ready for receipts for so long."""
    return [await journal.pass_deadlines(TICK, NOW, providers, 9) for _ in range(duration // TICK)]


def passed(found: Sequence[PassedDeadlines]) -> int:
    return sum(sum(each.passed.values()) for each in found)


async def test_a_deadline_stands_still_while_only_workers_without_its_provider_listen(
    source: JournalDatabase,
) -> None:
    """Its receipts couldn't be received meanwhile: nothing may go to the next channel for it."""
    async with worker(source, MAIL) as mail:
        async with worker(source, SMS) as text:
            await listen(text, SMS, MINUTE)
            await send_to_confirm(text, 1, 11 * MINUTE, 10 * MINUTE)
            await listen(text, SMS, 4 * MINUTE)
        await listen(mail, MAIL, 30 * MINUTE)
        async with worker(source, SMS) as text:
            found = await text.pass_deadlines(0, NOW, SMS, 9)
            assert not found.passed
            assert found.next_by is not None
            assert found.next_by - found.listened == 6 * MINUTE
            [life] = PostgresqlReader(source).lives([1])
            assert life.message is not None
            assert life.message.confirm_within == 360.0
            await send_to_confirm(text, 2, found.listened + 8 * MINUTE, 8 * MINUTE)
            assert not passed(await listen(text, SMS, 6 * MINUTE - TICK))
            assert passed(await listen(text, SMS, 4 * TICK)) == 1  # who counts changes
            assert not passed(await listen(text, SMS, 2 * MINUTE - 4 * TICK))
            assert passed(await listen(text, SMS, 4 * TICK)) == 1


async def test_a_deadline_goes_on_while_any_worker_with_its_provider_listens(source: JournalDatabase) -> None:
    """Whoever counts the time, and though the worker that sent the message is gone."""
    async with worker(source, MAIL) as mail, worker(source, SMS) as other:
        async with worker(source, SMS) as text:
            await send_to_confirm(text, 1, 10 * MINUTE, 10 * MINUTE)
        found = []
        for _ in range(10 * MINUTE // TICK + 2):  # late by two ticks at most
            found += await listen(mail, MAIL, TICK) + await listen(other, SMS, TICK)
        assert passed(found) == 1


async def test_a_deadline_isnt_early_where_another_worker_counts_the_time(source: JournalDatabase) -> None:
    """What the sender knows of it and what is recorded are both up to two ticks behind."""
    async with worker(source, SMS) as counting, worker(source, SMS) as sender:
        await listen(counting, SMS, MINUTE)
        await send_to_confirm(sender, 1, 10 * MINUTE + MINUTE + 2 * ONE_SECOND, 10 * MINUTE)
        assert not passed(await listen(counting, SMS, 10 * MINUTE))
        assert not (await counting.pass_deadlines(9 * ONE_SECOND, NOW, SMS, 9)).passed
        assert (await counting.pass_deadlines(1 * ONE_SECOND, NOW, SMS, 9)).passed == {"sms": 1}
