"""Logs of ended workers: which worker may have one, when several ask or clean up at a time."""

from __future__ import annotations

import threading

import pytest

from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import connect_to_write
from deliveryd.journal.postgresql.logs import take_first
from deliveryd.journal.postgresql.opening import LEASE, open_shared_journal
from deliveryd.journal.postgresql.schema import prepare_schema
from deliveryd.journal.postgresql.workers import By, Workers
from deliveryd.runtime.threads import inline
from journal.samples import NOW, ONE_SECOND, deliver_to_sent
from support.postgres import new_database

pytestmark = [pytest.mark.slow]

_WORKER = "INSERT INTO main.worker (name, began_at, format, lease, ended) VALUES ('', 1, 1, 1, %s)"


@pytest.fixture
def source() -> JournalDatabase:
    """An empty database."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


def test_a_log_that_a_live_worker_takes_over_just_now_is_not_taken_by_a_start(
    source: JournalDatabase,
) -> None:
    """The start sees it as a dead worker's until the other one has committed."""
    found: list[int] = []
    with connect_to_write(source, 9) as begins, connect_to_write(source, 9) as adopts:
        prepare_schema(begins)
        begins.execute("DELETE FROM main.log")
        for ended in ("fenced", None, None):
            begins.execute(_WORKER, (ended,))
        begins.execute("INSERT INTO main.log (number, settled, holder) VALUES (1, 1::int8 << 40, 1)")
        adopts.execute("BEGIN")
        adopts.execute("UPDATE main.log SET holder = 2 WHERE number = 1")
        start = threading.Thread(target=lambda: found.append(take_first(begins, 3)[0]))
        start.start()
        adopts.execute("COMMIT")
        start.join()
        assert found == [2]
        assert begins.execute("SELECT number, holder FROM main.log ORDER BY number").fetchall() == [
            (1, 2),
            (2, 3),
        ]


@pytest.mark.anyio
async def test_who_deletes_what_is_old_leaves_a_log_with_who_had_it_last(source: JournalDatabase) -> None:
    """Once attempts of a worker that an operator ended are over, which may go on for its lease."""
    now = [1000.0]
    async with open_shared_journal(source, blocking=inline) as ended:
        await ended.recover(NOW, ["sms"])
        await deliver_to_sent(ended, 1)
        async with open_shared_journal(source, blocking=inline, boot_time=lambda: now[0]) as other:
            await other.recover(NOW, ["sms"])
            workers = Workers(source)
            workers.fence(workers.list()[0], NOW, By(None, None, None))
            await other.prune(NOW + ONE_SECOND, 10)
            assert (await other.account()).pruned == 0
            now[0] += LEASE + 1
            await other.prune(NOW + ONE_SECOND, 10)
            with connect_to_write(source, 9) as db:
                assert db.execute("SELECT count(*) FROM main.message").fetchall() == [(0,)]
                assert db.execute("SELECT holder FROM main.log ORDER BY number").fetchall() == [(1,), (2,)]
