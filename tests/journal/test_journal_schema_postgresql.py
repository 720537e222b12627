"""The journal's tables in PostgreSQL: what is written for a file is right there, and sees one log."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from itertools import count
from types import ModuleType

import psycopg
import pytest

import deliveryd.journal
import deliveryd.journal.sql
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import connect_to_write
from deliveryd.journal.postgresql.database import Database, prepared
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.schema import OF_LOG
from journal.samples import (
    NOW,
    accept_all,
    bring_in_doubt,
    bring_to_wait,
    deliver_to_sent,
    sample_message,
)
from support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FRAGMENTS = {"audit._UNACCEPTED", "provider_ids.SENT_ROWS", "receipt_bulk.SENT_ROWS"}
"""What begins like a statement, and is part of others."""

STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH) ")
MESSAGES = 2000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


def statements() -> Iterator[tuple[str, str]]:
    """The names of all statements that modules of the journal have, and their texts."""
    for room in (deliveryd.journal, deliveryd.journal.sql):
        for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            if not found.ispkg:
                yield from _statements_of(importlib.import_module(found.name))


def _statements_of(module: ModuleType) -> Iterator[tuple[str, str]]:
    for name, value in vars(module).items():
        full = f"{module.__name__.rpartition('.')[2]}.{name}"
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and STATEMENT.match(text) and full not in FRAGMENTS:
                filled = re.sub(r"\{+emptied\}+", "", re.sub(r"\{+\w+:d\}+", "6", text))
                if "{" not in filled:
                    yield full, filled


async def test_each_statement_of_the_journal_can_be_prepared(source: JournalDatabase) -> None:
    """Also one that no other test runs: its tables, columns and functions are there, and its types fit."""
    async with open_shared_journal(source):
        pass
    failed: dict[str, str] = {}
    done = 0
    with connect_to_write(source, 900) as db:
        Database(db).enter(1)
        for name, text in statements():
            marks = count(1)
            sql = re.sub("%s", lambda _: f"${next(marks)}", prepared(text).text.decode())  # noqa: B023
            try:
                db.execute(f"PREPARE one AS {sql.replace('%%', '%')}".encode(), prepare=False)
            except (psycopg.errors.IndeterminateDatatype, psycopg.errors.AmbiguousParameter):
                continue  # psycopg says which
            except psycopg.Error as error:
                failed[name] = str(error)
            else:
                db.execute("DEALLOCATE one", prepare=False)
                done += 1
    assert failed == {}
    assert done > 100


async def test_the_index_of_what_waits_is_made_anew_in_a_journal_of_0_1_0(source: JournalDatabase) -> None:
    index = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'main' AND indexname = 'message_held'"
    async with open_shared_journal(source):
        pass
    with connect_to_write(source, 900) as db:
        new = db.execute(index).fetchone()
        db.execute("DROP INDEX main.message_held")
        db.execute(
            "CREATE INDEX message_held ON main.message (log, waits_for, due_at)"
            " WHERE waits_for IS NOT NULL AND due_at IS NOT NULL"
        )
    async with open_shared_journal(source):
        pass
    with connect_to_write(source, 900) as db:
        assert db.execute(index).fetchone() == new


async def test_a_session_sees_and_changes_the_rows_of_its_log_alone(source: JournalDatabase) -> None:
    """Though all logs are in the same tables; `main` has them all."""
    async with open_shared_journal(source) as one, open_shared_journal(source) as two:
        for journal, first in ((one, 10), (two, 20)):
            await deliver_to_sent(journal, first + 1, f"p{first}")
            await bring_in_doubt(journal, first + 2)
            await bring_to_wait(journal, first + 3, NOW)
            await accept_all(journal)
            await journal.take([sample_message(first + 4)], [], NOW)
            await journal.pass_deadlines(1, NOW, ["sms"], 9)
    with connect_to_write(source, 9) as connection:
        db = Database(connection)
        db.enter(2)
        ids = [id_ for (id_,) in db.execute("SELECT id FROM message ORDER BY id")]
        assert ids == [21, 22, 23, 24]
        assert {id_ for (id_,) in db.execute("SELECT message_id FROM event")} == {21, 22, 23, 24}
        assert {id_ for (id_,) in db.execute("SELECT message_id FROM attempt")} == {21, 22}
        assert db.execute("SELECT number FROM log").fetchall() == [(2,)]
        for table in OF_LOG:
            assert db.execute(f"SELECT 1 FROM {table} WHERE log <> 2").fetchone() is None  # noqa: S608
        assert db.execute("UPDATE message SET reason = 'seen'").rowcount == 4
        assert db.execute("DELETE FROM event").rowcount == 5
        db.execute("INSERT INTO tombstone (id) VALUES (99)")
        db.enter(1)
        assert db.execute("SELECT 1 FROM message WHERE reason = 'seen'").fetchone() is None
        assert db.execute("SELECT count(*) FROM event").fetchone() == (5,)
        assert db.execute("SELECT 1 FROM tombstone").fetchone() is None
        db.look_at_all()
        assert db.execute("SELECT count(*) FROM message").fetchone() == (8,)
        assert db.execute("SELECT log FROM tombstone WHERE id = 99").fetchone() == (2,)


@pytest.mark.parametrize("has_statistics", [False, True])
async def test_what_is_done_for_one_message_reads_no_others(
    source: JournalDatabase, has_statistics: bool
) -> None:
    """Also before the server has looked at the tables: a worker may record thousands until then."""
    one_each = {
        "event": "SELECT seq FROM event WHERE message_id = ? ORDER BY seq",
        "message": "SELECT state FROM message WHERE id = ?",
        "unaccepted": "SELECT stay FROM unaccepted WHERE message_id = ?",
        "receipt": "SELECT seq FROM receipt WHERE message_id = ?",
    }
    fill = (
        (
            "INSERT INTO main.message (id, log, state, taken_at, ended_at)"
            " SELECT i, 1, 6, i, i FROM generate_series(1, %s) i"
        ),
        (
            "INSERT INTO main.event (seq, message_id, status, body)"
            " SELECT (1::int8 << 40) + i, i, 'sent', '{}' FROM generate_series(1, %s) i"
        ),
        (
            "INSERT INTO main.unaccepted (log, message_id, stay, stay_tries, provider, generation,"
            " started_at) SELECT 1, i, 1, 1, 'sms', 1, 1 FROM generate_series(1, %s) i"
        ),
        (
            "INSERT INTO main.receipt"
            " (message_id, provider, provider_id, delivered, status, reported_at, received_at)"
            " SELECT i, 'sms', i::text, 1, 'ok', 1, 1 FROM generate_series(1, %s) i"
        ),
    )
    async with open_shared_journal(source):
        pass
    with psycopg.connect(source.url, autocommit=True) as admin:
        for table in one_each:
            admin.execute(f"ALTER TABLE main.{table} SET (autovacuum_enabled = off)")
        for statement in fill:
            admin.execute(statement, (MESSAGES,))
        if has_statistics:
            admin.execute("ANALYZE")
    with connect_to_write(source, 9) as connection:
        db = Database(connection)
        db.enter(1)
        for table, query in one_each.items():
            text = prepared(query).text.decode().replace("%s", "$1")
            plan = db.connection.execute(f"EXPLAIN (GENERIC_PLAN) {text}".encode(), prepare=False)
            lines = "\n".join(line for (line,) in plan)
            assert re.search(r"Index Cond: .*\b(message_id|id) = \$1", lines), f"{table}: {lines}"
