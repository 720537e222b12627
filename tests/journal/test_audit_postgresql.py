"""The audit of a journal in a real PostgreSQL: each rule names what breaks it, and nobody waits for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from deliveryd.journal.journal import Journal
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import SHARED_CHECKS as CHECKS_OF_LOGS
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.reader import Reader
from deliveryd.journal.selection import Selection
from deliveryd.journal.sql.audit import CHECKS
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
    "only a waiting message has a due time": "UPDATE message SET due_at = 5 WHERE id = 2",
    "a message that was handed to a provider names it": "UPDATE message SET provider = '' WHERE id = 2",
    "a message in doubt may have arrived": ("UPDATE message SET doubt = 0, content = NULL WHERE state = 5"),
    "an attempt in doubt has the message's present stay": "UPDATE message SET stay = 2 WHERE state = 5",
    "content is stored only while it may be repeated": "UPDATE message SET content = '[]' WHERE id = 2",
    "dequeued is the first event": "DELETE FROM event WHERE message_id = 2 AND status = 'dequeued'",
    "a taken message has an unsettled dequeued event": (
        "UPDATE message SET state = 1, ended_at = NULL WHERE id = 2"
    ),
    "dequeued was accepted before the message moved on": (
        "UPDATE event SET seq = seq + 1000 WHERE message_id = 2"
    ),
    "a message set aside has a refused dequeued event": "UPDATE event SET refused = NULL, refused_at = NULL",
    "a sent message has one sent event for each acceptance, and an error for each new generation": (
        "DELETE FROM event WHERE message_id = 2 AND status = 'sent'"
    ),
    "a delivered message has one sent event for each acceptance and one delivered event": (
        "UPDATE message SET state = 7 WHERE id = 2"
    ),
    "a failed message has one error event for each generation": "UPDATE message SET state = 8 WHERE id = 2",
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
        "UPDATE message SET sent_by = 'email' WHERE id = 2"
    ),
    "only a sent message has a receipt deadline": "UPDATE message SET confirm_by = 5 WHERE state = 5",
    "tries are numbered without a gap": "UPDATE message SET stay_tries = 7 WHERE id = 2",
    "stays are numbered without a gap": "UPDATE message SET stay = 7 WHERE id = 2",
    "a message being sent has one attempt without an outcome": (
        "UPDATE message SET state = 4, ended_at = NULL WHERE id = 2"
    ),
    "no other message has an attempt without an outcome": "UPDATE unaccepted SET verdict = NULL",
    "an attempt belongs to a message": "DELETE FROM message WHERE state = 5",
    "an event belongs to a message or a tombstone": "DELETE FROM message WHERE id = 2",
    "a refused event is settled": "UPDATE event SET refused_at = NULL",
    "a settled event was refused, or accepted in a post": "DELETE FROM post",
    "a matched receipt belongs to a message": (
        "INSERT INTO receipt (message_id, reported_at, received_at, delivered, provider, provider_id, status)"
        " VALUES (999, 1, 1, 1, 'sms', 'p', 'ok')"
    ),
    "no generation is used again": "INSERT INTO generation (id, count) VALUES (2, 1)",
    "no message has a tombstone": "INSERT INTO tombstone (id, log) SELECT id, log FROM message WHERE id = 2",
    "a message is in a log that is there": "UPDATE message SET log = 77 WHERE id = 2",
    "an event is in the log of its message": "UPDATE message SET log = 77 WHERE id = 2",
    "an attempt is in the log of its message": "UPDATE unaccepted SET log = 77",
    "the watermark of a log is within it": "UPDATE log SET settled = (number + 1) << 40",
    "an inbox belongs to a log that is there": (
        "INSERT INTO inbox (log, kind, body) VALUES (77, 'repeats', '[2]')"
    ),
    "what is open is in a log that a worker has or may take over": "UPDATE log SET holder = 77",
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


def broken(db: Connected, reader: Reader, script: str) -> set[str]:
    """The rules that a journal breaks after a change."""
    db.execute("SET search_path = main")
    db.execute(script)
    found = reader.audit()
    assert not found.is_balanced
    return {finding.check for finding in found.findings}


@pytest.mark.parametrize("check", BREAKS)
async def test_each_rule_finds_what_breaks_it(
    journal: Journal, database: JournalDatabase, check: str
) -> None:
    """In a journal that was sound before."""
    reader = database_reader(database)
    assert reader.audit().is_balanced
    with psycopg.connect(database.url, autocommit=True) as db:
        assert check in broken(db, reader, BREAKS[check])


def test_the_rules_are_those_of_a_file_and_some_of_logs() -> None:
    """Whoever knows a rule of one journal knows it of the other."""
    assert set(BREAKS) == {*CHECKS, *CHECKS_OF_LOGS}
    assert not CHECKS.keys() & CHECKS_OF_LOGS.keys()


async def test_a_sound_journal_of_several_workers_breaks_no_rule(database: JournalDatabase) -> None:
    """With messages in the logs of two, a log that nobody has, and one that was given back."""
    async with open_shared_journal(database) as one, open_shared_journal(database) as two:
        async with open_shared_journal(database) as ended:
            await deliver_to_sent(ended, 1)
            await bring_in_doubt(ended, 2)
        await bring_in_doubt(two, 3)
        await one.follow(NOW, ["sms"])
        await one.take([sample_message(4)], [], NOW)
        await deliver_to_sent(two, 5, "p5")
        await one.receive([sample_receipt("p5")])
        audit = database_reader(database).audit()
        assert (audit.findings, audit.is_balanced) == ((), True)
        assert (audit.account.taken, audit.events_waiting) == (5, 1)


async def test_a_worker_writes_and_forgets_while_the_journal_is_read(
    journal: Journal, database: JournalDatabase
) -> None:
    """What is read stays one snapshot, and neither waits for the other."""

    def count(db: Connected) -> int:
        return len(db.execute("SELECT id FROM main.message").fetchall())

    with psycopg.connect(database.url, autocommit=True) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with other.transaction():
            before = count(other)
            await journal.take([sample_message(9)], [], DAYS_LATER)
            await journal.prune(DAYS_LATER + ONE_SECOND, 100)
            assert count(other) == before
        assert 0 < count(other) < before
    while await journal.prune(DAYS_LATER + ONE_SECOND, 100):
        pass
    assert database_reader(database).audit().is_balanced


@pytest.mark.parametrize("delivered", [True, False])
async def test_a_receipt_that_another_worker_got_is_read_once_its_worker_has_it(
    database: JournalDatabase, delivered: bool
) -> None:
    """Until then it is in an inbox, and the journal is as sound as before."""
    async with open_shared_journal(database) as taker, open_shared_journal(database) as receiver:
        await receiver.recover(NOW, ["sms"])
        await hand_over(taker, 1)
        await receiver.receive([sample_receipt("p1", delivered=delivered)])
        reader = database_reader(database)
        assert [event.status for event in reader.lives([1])[0].events] == ["dequeued", "sent"]
        assert reader.audit().is_balanced
        await taker.follow(NOW, ["sms"])
        [life] = reader.lives([1])
        last = "delivered" if delivered else "error"
        assert [event.status for event in life.events] == ["dequeued", "sent", last]
        assert [event.settled_at is None for event in life.events] == [False, True, True]
        [found] = reader.find(Selection(), None, 9).found
        assert found.reason == (None if delivered else REPORTED_UNDELIVERED)
        audit = reader.audit()
        assert (audit.events_waiting, audit.findings, audit.is_balanced) == (2, (), True)


async def test_a_reader_goes_on_after_its_connection_was_lost(
    journal: Journal, database: JournalDatabase
) -> None:
    """As after a restart of the database: the next read connects anew."""
    reader = database_reader(JournalDatabase(f"{database.url}&application_name=looker"))
    assert reader.known([1], []).messages == {1}
    with psycopg.connect(database.url, autocommit=True) as db:
        ended = db.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'looker'"
        ).fetchone()
    assert ended == (1,)
    assert reader.known([1], []).messages == {1}
