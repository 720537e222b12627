"""Workers of a shared journal whose clocks, and whose listening times, aren't the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from deliveryd.journal.journal import Journal
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.model import SECOND, Confirmation
from journal.samples import (
    NOW,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    deliver_to_sent,
    make_ready,
    sample_message,
    sample_receipt,
    waiting_events,
)
from support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def workers() -> AsyncIterator[tuple[Journal, Journal]]:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(open_shared_journal(JournalDatabase(url))) for _ in range(2)
        ]
        for journal in (one, other):
            await journal.recover(NOW, ["sms"])
        yield one, other


async def test_a_deadline_counts_from_the_acceptance_whatever_its_worker_knows_of_the_listening_time() -> (
    None
):
    """One worker counted an hour; the log that it takes over is of one that had nothing to count for."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    ten = 10 * SECOND
    async with open_shared_journal(JournalDatabase(url)) as one:
        await one.recover(NOW, ["sms"])
        listened = (await one.pass_deadlines(3600 * SECOND, NOW, ["sms"], 9)).listened
        async with open_shared_journal(JournalDatabase(url)) as ended:
            await make_ready(ended, 1, 2)
            await begin_attempts(ended, attempt_on(1))
            step = accepted_step(attempt_on(1), "p1")
            await ended.change([step._replace(confirmation=Confirmation(ten, ten, False))])
        await one.follow(NOW, ["sms"])
        await one.pass_deadlines(0, NOW, ["sms"], 9)  # what was listened before isn't added to what is new
        await accept_all(one)
        [entry] = (await one.due(NOW, {"": 9})).entries
        assert entry.id == 2
        await begin_attempts(one, attempt_on(2))
        step = accepted_step(attempt_on(2), "p2")
        await one.change([step._replace(confirmation=Confirmation(listened + 2 * ten, ten, False))])
        await accept_all(one)
        assert not (await one.pass_deadlines(9 * SECOND, NOW, ["sms"], 9)).passed
        assert (await one.pass_deadlines(2 * SECOND, NOW, ["sms"], 9)).passed == {"sms": 1}
        assert not (await one.pass_deadlines(8 * SECOND, NOW, ["sms"], 9)).passed
        assert (await one.pass_deadlines(2 * SECOND, NOW, ["sms"], 9)).passed == {"sms": 1}


async def test_no_event_is_before_one_that_a_worker_with_another_clock_made(
    workers: tuple[Journal, Journal],
) -> None:
    """The queue gives the message again to a worker that is behind, which also hears of the receipt."""
    one, other = workers
    await deliver_to_sent(one, 1)
    assert await waiting_events(one) == []
    await other.take([sample_message(1)], [], NOW - 60 * SECOND)
    await other.receive([sample_receipt(at=NOW - 60 * SECOND)])
    await one.follow(NOW, ["sms"])
    rows = await one.outbox(0, 9)
    assert [row.status for row in rows] == ["dequeued", "sent", "delivered"]
    instants = [json.loads(row.body)["timestamp"] for row in rows]
    assert instants == sorted(instants)
    assert await waiting_events(other) == []
