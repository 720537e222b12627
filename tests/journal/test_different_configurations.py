"""Workers of one journal in PostgreSQL whose configurations differ, as while a change is rolled out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import product

import anyio
import anyio.lowlevel
import pytest

from deliveryd.journal.base import Doubtful, PassedDeadlines
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, Decided, ItemKind, Order
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
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
from support.postgres import new_database

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


# a provider that the worker doesn't have that takes over


async def test_what_waited_at_a_provider_that_the_next_worker_lacks_goes_elsewhere_or_is_held(
    source: JournalDatabase,
) -> None:
    """As after its removal: what never left goes on at any provider, what may have arrived is held."""
    async with worker(source, MAIL) as mail:
        async with worker(source, SMS) as text:
            await bring_to_wait(text, 1, NOW + 60 * ONE_SECOND, "sms")
            await bring_in_doubt(text, 2, State.WAITING)
            await make_ready(text, 3)
            await begin_attempts(text, attempt_on(3))
        found = (await mail.follow(NOW, MAIL)).adopted
        assert found is not None
        assert found.doubtful == [
            Doubtful(attempt_on(3), State.SENDING),
            Doubtful(attempt_on(2)._replace(doubt=True), State.IN_DOUBT),
        ]
        assert [each.id for each in (await mail.due(NOW, {"": 9})).entries] == [1]
        assert await state_counts(mail) == {State.READY: 1, State.IN_DOUBT: 1, State.SENDING: 1}


async def test_what_waited_is_taken_by_the_next_worker_that_has_the_provider(source: JournalDatabase) -> None:
    """A worker that ends and begins again with the same configuration goes on where it was."""
    async with worker(source, SMS) as text:
        await bring_to_wait(text, 1, NOW, "sms")
        await bring_in_doubt(text, 2, State.WAITING)
    async with worker(source, SMS) as text:
        found = await text.due(NOW + ONE_SECOND, {"sms": 9})
        assert [(each.id, each.provider) for each in found.entries] == [(1, "sms"), (2, "sms")]


# orders


async def order(journal: PostgresqlJournal, given: Order, other: PostgresqlJournal) -> Decided:
    """Give an order to one worker, while the other one follows."""

    async def follow() -> None:
        while True:
            await other.follow(NOW, SMS)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        decided = await journal.decide(given, NOW, MAIL)
        tasks.cancel_scope.cancel()
    return decided


async def test_an_order_about_a_provider_that_another_worker_has_is_carried_out(
    source: JournalDatabase,
) -> None:
    """Whichever worker an operator asks: the one that has the provider follows."""
    async with worker(source, MAIL) as mail, worker(source, SMS) as text:
        await bring_in_doubt(text, 1)
        await mail.follow(NOW, MAIL)
        given = Order(Action.RESEND, ItemKind.MESSAGE, ("1",))
        assert (await order(mail, given, text)).done == ("1",)
        for kind in (ItemKind.PROVIDER, ItemKind.CHANNEL):
            assert (await mail.decide(Order(Action.PAUSE, kind, SMS), NOW, MAIL)).done == SMS
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
    """`receipt_overdue` differs: the first one counts, and nobody who takes over counts again."""
    async with worker(source, SMS) as other:
        found: list[int] = []
        async with worker(source, SMS) as one:
            for id_ in range(1, 6):
                await deliver_to_sent(one, id_, f"p{id_}")
                await send_to_confirm(one, 10 + id_, 60 * MINUTE, 60 * MINUTE)
            for journal, seconds in product((one, other), (60, 1, 60, 90)):
                found += [await journal.count_overdue("sms", None, NOW + seconds * ONE_SECOND)]
        assert (await other.follow(NOW, SMS)).adopted is not None
        for seconds in (60, 1, 60, 90):
            found += [await other.count_overdue("sms", None, NOW + seconds * ONE_SECOND)]
        assert sum(found) == 10


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


async def test_a_deadline_stands_still_until_a_worker_has_the_message_again(source: JournalDatabase) -> None:
    """Its receipts couldn't be received meanwhile: nothing may go to the next channel for it."""
    async with worker(source, SMS) as text:
        await listen(text, SMS, MINUTE)
        await send_to_confirm(text, 1, 11 * MINUTE, 10 * MINUTE)
        await listen(text, SMS, 4 * MINUTE)
    async with worker(source, SMS) as text:
        found = await text.pass_deadlines(0, NOW, SMS, 9)
        assert not found.passed
        assert found.next_by is not None
        assert found.next_by - found.listened == 6 * MINUTE
        assert not passed(await listen(text, SMS, 6 * MINUTE - TICK))
        assert passed(await listen(text, SMS, TICK)) == 1


@pytest.mark.parametrize("before", [0, 30 * MINUTE])
async def test_a_deadline_goes_on_with_a_worker_that_takes_over(source: JournalDatabase, before: int) -> None:
    """However long that one has listened itself; what it sends of the others' has whole deadlines as well."""
    async with worker(source, SMS) as other:
        await listen(other, SMS, before)
        async with worker(source, SMS) as text:
            await send_to_confirm(text, 1, 10 * MINUTE, 10 * MINUTE)
            await listen(text, SMS, 4 * MINUTE)
            await make_ready(text, 2)
            await begin_attempts(text, attempt_on(2))
        adopted = (await other.follow(NOW, SMS)).adopted
        assert adopted is not None
        [doubtful] = adopted.doubtful
        now = (await other.pass_deadlines(0, NOW, SMS, 9)).listened
        step = accepted_step(doubtful.entry, "p2")
        confirmation = Confirmation(now + 8 * MINUTE, 8 * MINUTE, failed_next=False)
        await other.change([step._replace(confirmation=confirmation)])
        assert not passed(await listen(other, SMS, 6 * MINUTE - TICK))
        assert passed(await listen(other, SMS, TICK)) == 1
        assert not passed(await listen(other, SMS, 2 * MINUTE - TICK))
        assert passed(await listen(other, SMS, TICK)) == 1


async def test_a_deadline_is_dropped_with_a_worker_that_lacks_its_provider(source: JournalDatabase) -> None:
    """As after its removal: nobody could receive its reports, so the message stays sent."""
    async with worker(source, MAIL) as mail:
        async with worker(source, SMS) as text:
            await send_to_confirm(text, 1, 10 * MINUTE, 10 * MINUTE)
        assert (await mail.follow(NOW, MAIL)).adopted is not None
        found = await listen(mail, MAIL, 30 * MINUTE)
        assert not passed(found)
        assert sum(sum(each.dropped.values()) for each in found) == 1
    [life] = database_reader(source).lives([1])
    assert life.message is not None
    assert life.message.state is State.SENT
    assert life.message.confirm_within is None


async def test_a_deadline_counts_only_the_time_of_the_worker_that_has_the_message(
    source: JournalDatabase,
) -> None:
    """Another worker's listening time makes it neither early nor late."""
    async with worker(source, SMS) as other, worker(source, SMS) as sender:
        await listen(other, SMS, MINUTE)
        await send_to_confirm(sender, 1, 10 * MINUTE, 10 * MINUTE)
        assert not passed(await listen(other, SMS, 10 * MINUTE))
        assert not passed(await listen(sender, SMS, 10 * MINUTE - TICK))
        assert passed(await listen(sender, SMS, TICK)) == 1
