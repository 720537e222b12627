"""Retention of the journal in PostgreSQL: weeks under load, batches, and the logs that nobody has."""

from __future__ import annotations

import time

import psycopg
import pytest

from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.postgresql.workers import By, Workers
from deliveryd.model import StatusEvent, Transition, WallClock
from deliveryd.states import State
from journal.samples import (
    DAYS_LATER,
    NOW,
    accept_all,
    attempt_on,
    begin_attempts,
    bring_to_wait,
    decide_on,
    deliver_to_sent,
    hand_over,
    make_ready,
    receive_all,
    refuse_sent,
    sample_entry,
    sample_message,
    sample_receipt,
    state_counts,
    waiting_events,
)
from retention.load import DAY
from retention.sizes import Sizes
from retention.weeks import Weeks, live_through
from support.postgres import new_database, vacuum_often

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BY_ROOT = By("root", None, None)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


def holders(source: JournalDatabase) -> list[int | None]:
    """The workers that have the logs, or had them last, by the numbers of the logs."""
    with psycopg.connect(source.url) as db:
        return [
            holder for (holder,) in db.execute("SELECT holder FROM main.log WHERE number > 0 ORDER BY number")
        ]


@pytest.mark.soak
async def test_sizes_stay_flat_once_messages_are_deleted_while_the_load_goes_on(
    source: JournalDatabase,
) -> None:
    """Nothing is lost, no take fails, and what has to stay for longer stays.

    `python -m retention` is the same for four weeks, and prints the figures of each day.
    """
    weeks = Weeks(days=9, batches=1, retention=2, workers=2)
    with vacuum_often(source.url):
        sizes, _ = await live_through(source, weeks)
    Sizes.heading()
    for each in sizes:
        each.line()
    before, last = sizes[weeks.steady], sizes[-1]
    assert last.kept == before.kept
    assert last.rows + last.indexes <= 1.25 * (before.rows + before.indexes)


async def test_old_messages_are_deleted_in_batches_and_their_ids_are_kept(source: JournalDatabase) -> None:
    """What waits, is ready or has an event that was refused stays, and goes on as if nothing had happened."""
    async with open_shared_journal(source) as journal:
        for number in range(1, 6):
            await deliver_to_sent(journal, number, f"p{number}")
        await hand_over(journal, 6, "p6")
        sent = await refuse_sent(journal)
        await bring_to_wait(journal, 7, DAYS_LATER, "sms")
        await make_ready(journal, 8)
        assert [await journal.prune(DAYS_LATER, 2) for _ in range(4)] == [2, 2, 1, 0]
        account = await journal.account()
        assert (account.ended, account.pruned, account.gap) == (1, 5, 0)
        await journal.take([sample_message(9), sample_message(1)], [], DAYS_LATER)
        assert await waiting_events(journal) == [(9, "dequeued"), (1, "dequeued"), (1, "sent")]
        await accept_all(journal, DAYS_LATER)
        assert (await decide_on(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).done
        assert await waiting_events(journal) == [(6, "sent")]
        await accept_all(journal, DAYS_LATER)
        assert [each.id for each in (await journal.due(DAYS_LATER, {"sms": 9})).entries] == [7]
        await begin_attempts(journal, attempt_on(8))
        assert await journal.prune(DAYS_LATER, 9) == 1
        assert await receive_all(journal, [sample_receipt("p1")]) == ["unmatched"]
        assert await state_counts(journal) == {State.READY: 2, State.SENDING: 1}
        assert database_reader(source).audit().is_balanced


async def test_a_worker_deletes_from_its_own_log_and_not_from_that_of_another(
    source: JournalDatabase,
) -> None:
    async with open_shared_journal(source) as one, open_shared_journal(source) as two:
        await deliver_to_sent(one, 1)
        await deliver_to_sent(two, 2, "p2")
        await deliver_to_sent(two, 3, "p3")
        assert await one.prune(DAYS_LATER, 9) == 1
        assert await one.prune(DAYS_LATER, 9) == 0
        assert await two.prune(DAYS_LATER, 9) == 2


async def test_messages_in_logs_that_nobody_has_are_deleted_in_batches(source: JournalDatabase) -> None:
    """Of each log a portion at a time; the logs stay free, and the next worker takes one for itself."""
    async with open_shared_journal(source) as journal:
        async with open_shared_journal(source) as one, open_shared_journal(source) as two:
            for number in range(1, 4):
                await deliver_to_sent(one, number, f"p{number}")
                await deliver_to_sent(two, number + 10, f"p{number + 10}")
        before = holders(source)
        pruned = [await journal.prune(DAYS_LATER, 2) for _ in range(5)]
        assert (sum(pruned), max(pruned), pruned[-1]) == (6, 2, 0)
        assert holders(source) == before
        account = await journal.account()
        assert (account.taken, account.ended, account.pruned, account.gap) == (6, 0, 6, 0)
        async with open_shared_journal(source) as next_one:
            await deliver_to_sent(next_one, 21, "p21")
            assert len(holders(source)) == len(before)
        assert database_reader(source).audit().is_balanced


async def test_a_log_whose_messages_have_to_stay_keeps_no_other_one_from_being_emptied(
    source: JournalDatabase,
) -> None:
    """An event that was refused keeps its message for as long as nobody decides, in a log that nobody has."""
    async with open_shared_journal(source) as journal:
        async with open_shared_journal(source) as one, open_shared_journal(source) as two:
            await hand_over(one, 1)
            await refuse_sent(one)
            await deliver_to_sent(two, 2, "p2")
        assert sorted([await journal.prune(DAYS_LATER, 9) for _ in range(3)]) == [0, 0, 1]
        account = await journal.account()
        assert (account.ended, account.pruned, account.gap) == (1, 1, 0)


async def test_nothing_old_is_deleted_from_a_log_while_attempts_of_its_worker_may_go_on(
    source: JournalDatabase,
) -> None:
    """Nor is it free earlier than those of a worker that an operator ended are over."""
    now = [1000.0]
    async with (
        open_shared_journal(source) as ended,
        open_shared_journal(source, boot_time=lambda: now[0]) as other,
    ):
        await deliver_to_sent(ended, 1)
        await make_ready(ended, 2)
        await begin_attempts(ended, attempt_on(2))
        workers = Workers(source)
        assert workers.fence(workers.list()[0], NOW, BY_ROOT)
        await other.prune(DAYS_LATER, 9)
        assert (await other.account()).pruned == 0
        now[0] += 0.6
        assert (await other.follow(NOW, ["sms"])).adopted is None
        now[0] += 20
        adopted = (await other.follow(NOW, ["sms"])).adopted
    assert adopted is not None
    assert [each.entry.id for each in adopted.doubtful] == [2]


async def test_a_clock_that_is_ahead_forgets_nothing_too_early(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker's wrong clock would have all of them forget, and receipts would fit nothing any more."""
    right = time.time_ns() // 1000
    wrong = right + 30 * DAY
    async with open_shared_journal(source) as journal:
        await journal.take([sample_message(1)], [], right)
        await journal.accept(await journal.outbox(0, 9), right)
        failed = StatusEvent(1, "error", right, details="sms: no such number")
        step = Transition(sample_entry(1), State.READY, State.FAILED, right, events=(failed,))
        await journal.change([step])
        await journal.accept(await journal.outbox(0, 9), right)
        monkeypatch.setattr(WallClock, "now", lambda _clock: wrong)
        assert await journal.prune(wrong - 7 * DAY, 9) == 0
        monkeypatch.setattr(WallClock, "now", lambda _clock: right)
        assert await journal.prune(wrong - 7 * DAY, 9) == 1
