"""What lies in a log's inbox when a worker takes the log over."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from deliveryd.journal.base import MatchedReceipt
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import connect_to_write
from deliveryd.journal.postgresql.inbox import ROWS_AT_ONCE
from deliveryd.journal.postgresql.lease import fence, live_workers
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.model import ProgressReport
from deliveryd.runtime.threads import inline
from deliveryd.states import State
from journal.samples import (
    NOW,
    accept_all,
    bring_in_doubt,
    deliver_to_sent,
    echoed_receipt,
    hand_over,
    sample_receipt,
    waiting_events,
)
from support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def source() -> JournalDatabase:
    """An empty database."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


async def test_a_report_that_waited_for_a_start_settles_what_was_in_doubt(source: JournalDatabase) -> None:
    """Else the worker that starts would take the message for one in doubt, and might send it again."""
    async with open_shared_journal(source, blocking=inline) as dead:
        await dead.recover(NOW, ["sms"])
        await bring_in_doubt(dead, 1)
        async with open_shared_journal(source, blocking=inline) as other:
            await other.recover(NOW, ["sms"])
            (report,) = await other.receive([echoed_receipt("1", "")])
            assert report.result == "forwarded"
        with connect_to_write(source, 9) as db:
            fence(db, live_workers(db)[0])
        async with open_shared_journal(source, blocking=inline) as begun:
            left = await begun.recover(NOW, ["sms"])
            assert not left.doubtful
            assert [end for each in left.effects for end in each.ended] == [State.SENT, State.DELIVERED]
            assert (await begun.follow(NOW, ["sms"])).effects == []  # none is done twice


async def test_all_reports_that_waited_for_a_start_count_before_it_however_many_they_are(
    source: JournalDatabase,
) -> None:
    async with open_shared_journal(source, blocking=inline) as dead:
        await dead.recover(NOW, ["sms"])
        await deliver_to_sent(dead, 2, "p2")
        await bring_in_doubt(dead, 1)
        async with open_shared_journal(source, blocking=inline) as other:
            await other.recover(NOW, ["sms"])
            for _ in range(ROWS_AT_ONCE):
                await other.receive([ProgressReport("sms", "p2", "enroute", NOW)])
            assert [each.result for each in await other.receive([echoed_receipt("1", "")])] == ["forwarded"]
        with connect_to_write(source, 9) as db:
            fence(db, live_workers(db)[0])
        async with open_shared_journal(source, blocking=inline) as begun:
            assert not (await begun.recover(NOW, ["sms"])).doubtful


async def test_a_log_that_is_given_back_is_written_no_more(source: JournalDatabase) -> None:
    """What comes with the look that gives it back goes to its inbox: another worker may have it at once."""
    async with open_shared_journal(source, blocking=inline) as dead:
        await dead.recover(NOW, ["sms"])
        await hand_over(dead, 1, "p1")
        async with open_shared_journal(source, blocking=inline) as heir:
            await heir.recover(NOW, ["sms"])
            with connect_to_write(source, 9) as db:
                fence(db, live_workers(db)[0])
            assert (await heir.follow(NOW, ["sms"])).adopted is not None
            await accept_all(heir)
            found: list[MatchedReceipt] = []

            async def receive() -> None:
                while not heir._waiting:  # so that both are in one commit
                    await anyio.lowlevel.checkpoint()
                found.extend(await heir.receive([sample_receipt("p1")]))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(heir.follow, NOW, ["sms"])
                tasks.start_soon(receive)
            assert [each.result for each in found] == ["forwarded"]
            assert await waiting_events(heir) == []
            await heir.follow(NOW, ["sms"])
            await heir.follow(NOW, ["sms"])
            assert await waiting_events(heir) == [(1, "delivered")]
