"""The workers of a shared journal, as operators see them: who is there, what each has, and the end of one."""

from __future__ import annotations

import psycopg
import pytest

from deliveryd.commands.storage.workers import HOW_ENDED
from deliveryd.journal.base import EndedWorker
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql import journal
from deliveryd.journal.postgresql.connection import connect_to_write
from deliveryd.journal.postgresql.lease import CommitsLost, Fenced, fence, halt, live_workers
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.postgresql.workers import By, Workers
from deliveryd.journal.reader import DecisionSelection
from deliveryd.journal.sql import stopped
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import Transition, WallClock
from deliveryd.runtime import waits
from deliveryd.states import State
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    accept_all,
    attempt_on,
    begin_attempts,
    hand_over,
    make_ready,
    receive_all,
    sample_entry,
    sample_message,
    sample_receipt,
)
from support.logs import log_lines
from support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


async def test_a_worker_is_listed_with_its_lease_and_what_it_has(source: JournalDatabase) -> None:
    workers = Workers(source)
    with pytest.raises(JournalAbsent):
        workers.list()
    async with open_shared_journal(source, lease=7.0) as journal:
        await make_ready(journal, 1, 2, 3)
        await begin_attempts(journal, attempt_on(1))
        await journal.take([sample_message(4), sample_message(5)], [], NOW)
        (worker,) = workers.list()
        assert (worker.lease, worker.ended, worker.is_over) == (7.0, None, False)
        assert (worker.taken, worker.ready, worker.sending, worker.events) == (2, 2, 1, 2)
        assert 0 <= worker.still < 7
        before = worker.commits
        await accept_all(journal)
        (worker,) = workers.list()
        assert (worker.taken, worker.ready, worker.events) == (0, 4, 0)
        assert worker.commits > before
    (left,) = workers.list()
    assert (left.ended, left.ready) == ("released", 4)
    async with open_shared_journal(source) as journal:
        await journal.recover(NOW, ["sms"])
        assert [each.ended for each in workers.list()] == [None]


async def test_an_operator_ends_a_live_worker_and_that_is_recorded(source: JournalDatabase) -> None:
    """It records nothing from then on; the decision says who and why."""
    workers = Workers(source)
    async with open_shared_journal(source) as journal:
        await make_ready(journal, 1)
        (worker,) = workers.list()
        assert workers.fence(worker, NOW, By("root", "somebody", "it hangs"))
        assert not workers.fence(worker, NOW, By("root", None, None))
        with pytest.raises(Fenced):
            await begin_attempts(journal, attempt_on(1))
    (decision,) = database_reader(source).decisions(DecisionSelection(verb="fence"), 0, 9)
    assert (decision.kind, decision.key, decision.user, decision.caller, decision.reason) == (
        "worker", worker.name, "root", "somebody", "it hangs",
    )  # fmt: skip


async def test_another_worker_asks_for_what_the_ended_one_had_asked_for(source: JournalDatabase) -> None:
    """A message that waits for settings is due: nobody else knows that the service was asked for them."""
    workers, now = Workers(source), [1000.0]
    async with (
        open_shared_journal(source) as ended,
        open_shared_journal(source, boot_time=lambda: now[0]) as other,
    ):
        await make_ready(ended, 1)
        later = NOW + 3600 * ONE_SECOND
        entry, answer = sample_entry(1), waits.settings(40)
        step = Transition(entry, State.READY, State.WAITING, NOW, later, waits_for=answer)
        await ended.change([step])
        assert workers.fence(workers.list()[0], NOW, By("root", None, None))
        assert (await other.follow(NOW, ["sms"])).adopted is None
        assert not (await other.due(NOW, {"": 9})).entries
        now[0] += 20  # its attempts are over
        assert (await other.follow(NOW, ["sms"])).adopted is not None
        assert [each.id for each in (await other.due(NOW, {"": 9})).entries] == [1]


async def test_what_a_worker_had_that_an_operator_ended_waits_until_its_attempts_are_over(
    source: JournalDatabase,
) -> None:
    """Its attempts go on until its lease would have been over, by the clock of who adopts and no other one.

    A repeat before that could overtake them, whatever the database's clock says.
    """
    workers, now = Workers(source), [1000.0]
    async with (
        open_shared_journal(source) as ended,
        open_shared_journal(source, boot_time=lambda: now[0]) as other,
    ):
        await make_ready(ended, 1)
        await begin_attempts(ended, attempt_on(1))
        assert workers.fence(workers.list()[0], NOW, By("root", None, None))
        for put_back in ("3600 s", "-7200 s"):
            assert (await other.follow(NOW, ["sms"])).adopted is None
            with psycopg.connect(source.url) as admin:
                admin.execute("UPDATE main.worker SET renewed_at = renewed_at + %s::interval", (put_back,))
        now[0] += 20
        adopted = (await other.follow(NOW, ["sms"])).adopted
    assert adopted is not None
    assert [each.entry.id for each in adopted.doubtful] == [1]


async def test_what_a_worker_adopted_isnt_repeated_early_when_an_operator_ends_that_one(
    source: JournalDatabase,
) -> None:
    """The log was another worker's before; the attempt is the adopter's, and may be under way."""
    workers, now = Workers(source), [1000.0]
    async with open_shared_journal(source) as dead:
        await dead.take([sample_message(1)], [], NOW)
    async with (
        open_shared_journal(source) as holder,
        open_shared_journal(source, boot_time=lambda: now[0]) as other,
    ):
        await holder.recover(NOW, ["sms"])
        await accept_all(holder)
        await begin_attempts(holder, attempt_on(1))
        await other.recover(NOW, ["sms"])
        (record,) = [each for each in workers.list() if each.sending]
        assert workers.fence(record, NOW, By("root", None, None))
        for _ in range(4):
            now[0] += 0.6
            assert (await other.follow(NOW, ["sms"])).adopted is None
        now[0] += 20
        adopted = (await other.follow(NOW, ["sms"])).adopted
    assert adopted is not None
    assert [each.entry.id for each in adopted.doubtful] == [1]


async def test_after_a_loss_attempts_are_repeated_when_they_are_over_and_answers_are_asked_for(
    source: JournalDatabase,
) -> None:
    """A worker that was cut off may still be sending when an operator accepts the loss at once."""
    now = [1000.0]
    later = NOW + 3600 * ONE_SECOND
    async with open_shared_journal(source) as halted:
        await make_ready(halted, 1, 2)
        await begin_attempts(halted, attempt_on(1))
        answer = waits.settings(40)
        await halted.change(
            [Transition(sample_entry(2), State.READY, State.WAITING, NOW, later, waits_for=answer)]
        )
        with connect_to_write(source, 9) as db:
            halt(db, CommitsLost(9, 7, None))
    Workers(source).accept_losses(NOW, By("root", None, None))
    async with open_shared_journal(source, boot_time=lambda: now[0]) as one, open_shared_journal(source):
        assert not (await one.recover(NOW, ["sms"])).doubtful
        while (adopted := (await one.follow(NOW, ["sms"])).adopted) is None:
            now[0] += 1
        assert [each.id for each in (await one.due(NOW, {"": 9})).entries] == [2]
    assert now[0] >= 1020
    assert [each.entry.id for each in adopted.doubtful] == [1]


async def test_a_recipient_who_stops_while_the_list_is_read_is_on_it_or_follows(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker records it between the two statements that read the list."""

    def read_and_stop(db: Db) -> list[tuple[str, bytes]]:
        found = stopped.in_force(db)
        with psycopg.connect(source.url) as another:
            another.execute(
                "INSERT INTO main.stopped (channel, digest, at, source) VALUES ('sms', %s, %s, 'receipt')",
                (b"d" * 32, NOW),
            )
        return found

    monkeypatch.setattr(journal, "in_force", read_and_stop)
    async with open_shared_journal(source), open_shared_journal(source) as worker:
        await worker.recover(NOW, ["sms"])
        known = {channel for channel, _ in await worker.stopped()}
        known |= {change.channel for change in (await worker.follow(NOW, ["sms"])).stops}
    assert known == {"sms"}


async def test_what_others_left_in_the_inbox_of_a_worker_that_died_is_done_by_who_takes_its_log_over(
    source: JournalDatabase,
) -> None:
    """Nothing else is open there: what waits in the inbox is enough, and its end is told."""
    workers = Workers(source)
    async with open_shared_journal(source) as ended, open_shared_journal(source) as other:
        await hand_over(ended, 1)
        await accept_all(ended)
        assert workers.list()[0].events == 0
        await other.follow(NOW, ["sms"])
        assert await receive_all(other, [sample_receipt("p1")]) == ["forwarded"]
        with connect_to_write(source, 9) as db:
            assert fence(db, live_workers(db)[0])
        adopted = (await other.follow(NOW, ["sms"])).adopted
        assert adopted is not None
        assert [each.in_order for each in adopted.ended] == [False]
        assert [row.status for row in await accept_all(other)] == ["delivered"]
        assert [each.ended for each in workers.list()] == [None]


async def test_a_worker_that_stopped_in_order_is_named_by_the_one_that_goes_on_and_found_ended_later(
    source: JournalDatabase,
) -> None:
    """An operator may still ask by its name or number, for as long as messages are kept."""
    async with open_shared_journal(source) as other:
        async with open_shared_journal(source) as stopped:
            await hand_over(stopped, 1)
            name, number = Workers(source).list()[1].name, Workers(source).list()[1].id
        adopted = (await other.follow(NOW, ["sms"])).adopted
        assert adopted is not None
        assert adopted.ended == [EndedWorker(name, in_order=True)]
        await accept_all(other)
        await other.follow(NOW, ["sms"])
        assert [each.id for each in Workers(source).list()] == [1]
        for each in (name, str(number)):
            assert HOW_ENDED[Workers(source).how_ended(each) or ""] == "it ended its lease itself"
        await other.prune(WallClock().now() + DAYS_LATER - NOW, 9)
        for each in (name, str(number)):
            assert Workers(source).how_ended(each) is None


async def test_a_start_is_logged_with_the_workers_name_and_who_else_is_there(source: JournalDatabase) -> None:
    """By the names that the list of workers has: what the others have waits for the end of their leases."""
    with log_lines("info") as lines:
        async with open_shared_journal(source), open_shared_journal(source):
            first, second = Workers(source).list()
        joined = [line for line in lines() if line["event"] == "journal.joined"]
    assert [(line["worker"], line["workers"]) for line in joined] == [
        (first.name, ""), (second.name, first.name),
    ]  # fmt: skip


async def test_only_the_start_that_makes_the_journal_logs_that(source: JournalDatabase) -> None:
    with log_lines("info") as lines:
        async with open_shared_journal(source), open_shared_journal(source):
            pass
        created = [line["reason"] for line in lines() if line["event"] == "journal.created"]
    assert created == [f"the database {source.name} held none"]
