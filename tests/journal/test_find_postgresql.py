"""What a list of messages reads of a database: each message a few times, however many have ended."""

from __future__ import annotations

import gc
import time

import psycopg
import pytest

from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.selection import Selection
from deliveryd.states import State
from support.patience import PATIENCE
from support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ENDED, PORTION, LOGS = 6000, 50, 3
_FILL = (
    """
    INSERT INTO main.message (id, log, settings_id, customer_id, taken_at, ended_at, state)
    SELECT i, 1 + i %% %(logs)s, i, i, 1, 1 + i * 7919 %% %(ended)s, %(state)s
    FROM generate_series(1, %(ended)s) i
    """,
    "ANALYZE main.message",
)
_FILLED = {"logs": LOGS, "ended": ENDED, "state": int(State.FAILED)}
_READ = (
    "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE relname = 'message'"
)
_OTHERS = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def rows_read(db: psycopg.Connection) -> int:
    """Rows of messages that all sessions read so far; those that ended have said so."""
    until = time.monotonic() + PATIENCE
    while db.execute(_OTHERS).fetchone():
        assert time.monotonic() < until, "a session of the reader is still there"
        db.execute("SELECT pg_sleep(0.01)")
    (count,) = db.execute(_READ).fetchone() or (0,)
    return int(count)


@pytest.mark.parametrize("states", [(State.FAILED,), ()])
async def test_a_walk_in_portions_reads_each_message_a_few_times(states: tuple[State, ...]) -> None:
    """`failed list` took a minute with 88,000 ended messages: each portion sorted all of them."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    async with open_shared_journal(JournalDatabase(url)):
        pass
    with psycopg.connect(url, autocommit=True) as db:
        for statement in _FILL:
            db.execute(statement.encode(), _FILLED if "%" in statement else None)
        before = rows_read(db)
        reader = database_reader(JournalDatabase(url))
        found, after, pages = 0, None, 0
        while pages == 0 or after is not None:
            page = reader.find(Selection(states=states, settings=40), after, PORTION)
            found, after, pages = found + len(page.found), page.after, pages + 1
        del reader
        gc.collect()
        assert (found, pages) == (1, ENDED // PORTION + 1)
        assert rows_read(db) - before <= 3 * ENDED
