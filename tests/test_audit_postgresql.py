"""The audit of a journal in a real PostgreSQL: each rule names what breaks it, and nobody waits for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from deliveryd.journal.attention import LeftBehind
from deliveryd.journal.audit import CHECKS as FILE_CHECKS
from deliveryd.journal.base import Journal
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.checks import CHECKS
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reader import PostgresqlReader
from deliveryd.journal.postgresql.sharing import SHARING_CHECKS
from deliveryd.journal.postgresql.snapshots import Snapshots
from deliveryd.journal.selection import Selection
from deliveryd.model import Confirmation
from journal.reading import fail_on
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    REPORTED_UNDELIVERED,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    bring_to_wait,
    deliver_to_sent,
    hand_over,
    make_ready,
    refuse_first,
    sample_message,
    sample_receipt,
)
from support.postgres import new_database

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

BREAKS = {
    "every state is known": "UPDATE message SET state = 12 WHERE id = 2",
    "only an ended message has an end time": "UPDATE message SET ended_at = NULL WHERE id = 2",
    "only a waiting message has a due time": "DELETE FROM waiting",
    "a message that was handed to a provider names it": "UPDATE message SET provider = '' WHERE id = 2",
    "a message in doubt may have arrived": (
        "UPDATE message SET doubt = false, content = NULL WHERE state = 5"
    ),
    "an attempt in doubt has the message's present key": "UPDATE message SET key = 2 WHERE state = 5",
    "content is stored only while it may be repeated": "UPDATE message SET content = '[]' WHERE id = 2",
    "dequeued is the first event": "DELETE FROM event WHERE message_id = 2 AND status = 'dequeued'",
    "a taken message has an unsettled dequeued event": (
        "UPDATE message SET state = 1, ended_at = NULL WHERE id = 2"
    ),
    "dequeued was accepted before the message moved on": (
        "UPDATE event SET seq = seq + 1000 WHERE message_id = 2"
    ),
    "a message set aside has a refused dequeued event": "UPDATE event SET refused = NULL, refused_at = NULL",
    "a sent message has one sent event for each acceptance, and an error for each new beginning": (
        "DELETE FROM event WHERE message_id = 2 AND status = 'sent'"
    ),
    "a delivered message has one sent event for each acceptance and one delivered event": (
        "UPDATE message SET state = 7 WHERE id = 2"
    ),
    "a failed message has one error event for each beginning": "UPDATE message SET state = 8 WHERE id = 2",
    "a message that hasn't ended has no final event": (
        "UPDATE message SET state = 3, ended_at = NULL WHERE id = 2"
    ),
    "sent comes before delivered": (
        "UPDATE message SET state = 7 WHERE id = 2; UPDATE event SET status = 'delivered'"
        " WHERE message_id = 2 AND status = 'dequeued'"
    ),
    "a sent or delivered message has an accepted attempt": (
        "UPDATE message SET accepted_at = NULL WHERE id = 2"
    ),
    "a message that wasn't sent has no accepted attempt": (
        "UPDATE message SET accepted_at = 1 WHERE state = 5"
    ),
    "a message that wasn't confirmed in time has its accepted attempt": (
        "UPDATE message SET sent_by = 'sms' WHERE id = 2"
    ),
    "only a sent message has a receipt deadline": "UPDATE awaited SET id = 3",
    "tries are numbered without a gap": "UPDATE message SET number = 7 WHERE id = 2",
    "keys are numbered without a gap": "UPDATE message SET key = 7 WHERE id = 2",
    "a message being sent has one attempt without an outcome": (
        "UPDATE message SET state = 4, ended_at = NULL WHERE id = 2"
    ),
    "no other message has an attempt without an outcome": "UPDATE unaccepted SET verdict = NULL",
    "an attempt belongs to a message": "DELETE FROM message WHERE state = 5",
    "an event belongs to a message or a tombstone": "DELETE FROM message WHERE id = 2",
    "a refused event is settled": "UPDATE event SET refused_at = NULL",
    "a settled event was refused, or accepted in a post": "DELETE FROM post",
    "a matched receipt belongs to a message": (
        "INSERT INTO receipt (seq, day, message_id, reported_at, received_at, delivered, provider,"
        " provider_id, status) SELECT 1, day, 999, 1, 1, true, 'sms', 'p', 'ok' FROM message LIMIT 1"
    ),
    "no beginning is used again": "INSERT INTO beginning (id, count) VALUES (2, 1)",
    "no message has a tombstone": "INSERT INTO tombstone (id) VALUES (2)",
    "only what is taken, ready or being sent belongs to a worker": (
        "UPDATE message SET owner = NULL WHERE state = 1"
    ),
    "only what is held in doubt is marked as nobody's": "UPDATE message SET owner = NULL WHERE state = 5",
    "the worker that a message belongs to has it, or has ended": "UPDATE worker SET holder = NULL",
    "a message is in the partition that its id leads to": "DELETE FROM seen WHERE id = 2",
    "an event is in the partition of its message": (
        "CREATE TABLE event_other PARTITION OF event FOR VALUES IN (99999);"
        "UPDATE event SET day = 99999 WHERE message_id = 2"
    ),
    "what waits is a message that waits, at the same provider": "UPDATE waiting SET provider = 'other'",
    "what a receipt is awaited of is a sent message": "UPDATE awaited SET provider = 'other'",
    "all events of a message that wait are in one log": (
        "INSERT INTO inbox (log, message_id, status, body) VALUES (0, 8, 'sent', '{}')"
    ),
    "an inbox belongs to a log that is there": (
        "INSERT INTO inbox (log, message_id, status, body) VALUES (77, 2, 'sent', '{}')"
    ),
    "what is in an inbox belongs to a message or a tombstone": (
        "INSERT INTO inbox (log, message_id, status, body) VALUES (0, 999, 'sent', '{}')"
    ),
    "the watermark of a log is within it": "UPDATE worker SET settled = (id + 1) << 40",
    "somebody reports the events that wait": "UPDATE worker SET holder = NULL",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def database() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


@pytest.fixture
async def journal(database: JournalDatabase) -> AsyncIterator[Journal]:
    """A journal with messages in most of the states there are, and an event that waits."""
    async with open_shared_journal(database) as journal:
        for id_ in (1, 2):
            await deliver_to_sent(journal, id_)
        await bring_in_doubt(journal, 3)
        await bring_to_wait(journal, 4, NOW + ONE_SECOND)
        await fail_on(journal, 5, "sms", NOW, "no")
        await make_ready(journal, 6)
        await begin_attempts(journal, attempt_on(6))
        deadline = Confirmation(ONE_SECOND, ONE_SECOND, failed_next=False)
        await journal.change([accepted_step(attempt_on(6), "p6")._replace(confirmation=deadline)])
        await accept_all(journal)
        await journal.take([sample_message(7)], [], NOW)
        await refuse_first(journal, NOW)
        await journal.take([sample_message(8)], [], NOW)
        yield journal


def broken(db: Db, reader: PostgresqlReader, script: str) -> set[str]:
    """The rules that a journal breaks after a change."""
    db.execute(script)
    found = reader.audit()
    assert not found.is_balanced
    return {finding.check for finding in found.findings}


@pytest.mark.parametrize("check", BREAKS)
async def test_each_rule_finds_what_breaks_it(
    journal: Journal, database: JournalDatabase, check: str
) -> None:
    """In a journal that was sound before."""
    reader = PostgresqlReader(database)
    assert reader.audit().is_balanced
    with psycopg.connect(database.url, autocommit=True) as db:
        assert check in broken(db, reader, BREAKS[check])


def test_the_rules_are_those_of_a_file_and_some_of_sharing() -> None:
    """Whoever knows a rule of one journal knows it of the other."""
    assert set(CHECKS) == set(FILE_CHECKS)
    assert set(BREAKS) == {*CHECKS, *SHARING_CHECKS}
    assert not CHECKS.keys() & SHARING_CHECKS.keys()


async def test_a_worker_writes_and_forgets_while_the_journal_is_read(
    journal: Journal, database: JournalDatabase
) -> None:
    """What is read stays one snapshot: the day that is over is dropped when nobody reads it any more."""
    snapshots = Snapshots(database)

    def count(db: Db) -> int:
        return len(db.execute("SELECT id FROM message").fetchall())

    with psycopg.connect(database.url, autocommit=True) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with other.transaction():
            other.execute("LOCK TABLE receipt, event, unaccepted, message IN ACCESS SHARE MODE")
            before = count(other)
            await journal.take([sample_message(9)], [], DAYS_LATER)
            await journal.prune(DAYS_LATER + ONE_SECOND, 100)
            assert count(other) == before
        assert snapshots.read(count) > 0
    while await journal.prune(DAYS_LATER + ONE_SECOND, 100):
        pass
    assert PostgresqlReader(database).audit().is_balanced


@pytest.mark.parametrize("delivered", [True, False])
async def test_an_event_that_another_worker_will_report_is_read_like_one_in_its_log(
    database: JournalDatabase, delivered: bool
) -> None:
    """A receipt comes to one worker while `sent` still waits in the log of the other."""
    async with open_shared_journal(database) as taker, open_shared_journal(database) as receiver:
        await hand_over(taker, 1)
        await receiver.receive([sample_receipt("p1", delivered=delivered)])
        reader = PostgresqlReader(database)
        [life] = reader.lives([1])
        last = "delivered" if delivered else "error"
        assert [event.status for event in life.events] == ["dequeued", "sent", last]
        assert [event.settled_at is None for event in life.events] == [False, True, True]
        [found] = reader.find(Selection(), None, 9).found
        assert found.reason == (None if delivered else REPORTED_UNDELIVERED)
        audit = reader.audit()
        assert (audit.events_waiting, audit.findings, audit.is_balanced) == (2, (), True)


async def test_what_a_running_worker_has_isnt_left_behind(database: JournalDatabase) -> None:
    """Though the configuration of the one who asks lacks it."""
    async with open_shared_journal(database) as journal:
        await bring_to_wait(journal, 1, NOW + ONE_SECOND, "email")
        assert PostgresqlReader(database).left_behind(["sms"]) == [LeftBehind("email", waiting=1)]
        await journal.recover(NOW, ["email"])
        assert PostgresqlReader(database).left_behind(["sms"]) == []
    assert PostgresqlReader(database).left_behind(["sms"]) == [LeftBehind("email", waiting=1)]


async def test_a_reader_goes_on_after_its_connection_was_lost(
    journal: Journal, database: JournalDatabase
) -> None:
    """As after a restart of the database: the next read connects anew."""
    reader = PostgresqlReader(JournalDatabase(f"{database.url}&application_name=looker"))
    assert reader.known([1], []).messages == {1}
    with psycopg.connect(database.url, autocommit=True) as db:
        ended = db.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'looker'"
        ).fetchone()
    assert ended == (1,)
    assert reader.known([1], []).messages == {1}
