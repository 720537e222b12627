"""A standby that takes over: without what was acknowledged, all workers stop; with all of it, they go on."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import connect_to_write
from deliveryd.journal.postgresql.lease import CommitsLost, JournalHalted
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.postgresql.workers import By, Workers
from deliveryd.journal.reader import DecisionSelection
from deliveryd.states import State
from journal.samples import (
    NOW,
    attempt_on,
    begin_attempts,
    make_ready,
    sample_message,
    state_counts,
)
from support.directories import NoPostgres
from support.postgres_cluster import PostgresCluster, open_cluster

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    try:
        context = open_cluster()
        cluster = context.__enter__()
    except NoPostgres as error:
        pytest.skip(str(error))
    yield cluster
    context.__exit__(None, None, None)


async def test_commits_that_a_standby_does_not_have_stop_all_workers_until_they_are_accepted(
    cluster: PostgresCluster,
) -> None:
    """An intent was acknowledged and is lost: going on would send the message twice without a word."""
    place = JournalDatabase(cluster.url)
    workers = Workers(place)
    async with open_shared_journal(place, lease=5.0) as journal:
        await make_ready(journal, 1)
        cluster.await_standby()
        cluster.standby.cut_off()
        await begin_attempts(journal, attempt_on(1))
        await journal.take([sample_message(2)], [], NOW)
        await anyio.to_thread.run_sync(cluster.fail_over)
        with pytest.raises(CommitsLost, match="run deliveryd accept-loss"):
            await journal.take([sample_message(3)], [], NOW)
        (loss,) = workers.losses()
        assert loss.lost >= 2
    with pytest.raises(JournalHalted, match="run deliveryd accept-loss"):
        async with open_shared_journal(place, lease=5.0):
            pass
    assert workers.accept_losses(NOW, By("root", "somebody", "the disk is gone")) == 1
    assert workers.losses() == []
    async with open_shared_journal(place, lease=5.0) as journal:
        assert (await journal.account()).states == {State.READY: 1}
    (decision,) = database_reader(place).decisions(DecisionSelection(verb="accept loss"), 0, 9)
    assert (decision.kind, decision.key, decision.user, decision.caller, decision.reason) == (
        "worker", loss.name, "root", "somebody", "the disk is gone",
    )  # fmt: skip


async def test_one_worker_that_notices_stops_those_that_lost_nothing_themselves(
    cluster: PostgresCluster,
) -> None:
    """What the first one reported or matched may concern the second one's messages."""
    place = JournalDatabase(cluster.url)
    async with open_shared_journal(place, lease=60.0) as one, open_shared_journal(place, lease=60.0) as other:
        await make_ready(one, 1)
        await make_ready(other, 2)
        cluster.await_standby()
        cluster.standby.cut_off()
        await begin_attempts(one, attempt_on(1))
        await anyio.to_thread.run_sync(cluster.fail_over)
        with pytest.raises(CommitsLost):
            await one.take([sample_message(3)], [], NOW)
        with pytest.raises(JournalHalted, match="another worker noticed"):
            await begin_attempts(other, attempt_on(2))
    workers = Workers(place)
    assert [each.ended for each in workers.list()] == ["halted", "halted"]
    workers.accept_losses(NOW, By("root", None, None))
    async with open_shared_journal(place) as journal:
        assert (await journal.account()).states == {State.READY: 2}


async def test_a_standby_that_has_all_commits_takes_over_without_a_word(cluster: PostgresCluster) -> None:
    """Synchronous replication: the same worker goes on, with all that was acknowledged."""
    cluster.require_standby()
    place = JournalDatabase(cluster.url)
    async with open_shared_journal(place, lease=5.0) as journal:
        await make_ready(journal, 1, 2)
        await begin_attempts(journal, attempt_on(1))
        await anyio.to_thread.run_sync(cluster.fail_over)
        await journal.take([sample_message(3)], [], NOW)
        assert await state_counts(journal) == {State.SENDING: 1, State.READY: 1, State.TAKEN: 1}
        assert Workers(place).losses() == []
        assert (await journal.account()).gap == 0


async def test_a_worker_whose_answer_was_lost_too_learns_that_the_commits_before_are_gone(
    cluster: PostgresCluster,
) -> None:
    """The primary dies while a commit is under way: what became of it is asked of the standby."""
    place = JournalDatabase(cluster.url)
    async with open_shared_journal(place, lease=5.0) as journal:
        await make_ready(journal, 1)
        cluster.await_standby()
        cluster.standby.cut_off()
        await begin_attempts(journal, attempt_on(1))
        other = connect_to_write(JournalDatabase(cluster.primary.url), 60)
        other.execute("BEGIN")
        other.execute("LOCK TABLE message")  # the commit waits, and the primary dies
        async with anyio.create_task_group() as tasks:

            async def take() -> None:
                with pytest.raises(CommitsLost):
                    await journal.take([sample_message(2)], [], NOW)

            tasks.start_soon(take)
            while other.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is None:
                await anyio.lowlevel.checkpoint()
            await anyio.to_thread.run_sync(cluster.fail_over)
        other.close()
    assert len(Workers(place).losses()) == 1
