"""What the journal's file holds of messages and tries, and how its statements find it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deliveryd.journal.reader import file_reader
from deliveryd.journal.sql.outbox import written
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.model import (
    Malformed,
    Outcome,
    Receipt,
    StatusEvent,
    Transition,
    message_key,
)
from deliveryd.states import TRANSITIONS, State
from support.journal_walk import NOW, entry, make_ready, plans_of, walk_through_everything
from support.messages import queued_message as message

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


# what only reading the file shows


async def test_tries_under_one_key_have_numbers_and_outcomes_of_their_own(path: Path) -> None:
    async with open_journal_file(path) as journal:
        key = message_key(journal.namespace, 1, "sms", 1)
        await make_ready(journal, 1)
        await journal.change([Transition(entry(1), State.READY, State.SENDING, NOW)])
        assert file_reader(path).lives([1])[0].attempts == (
            (key, 1, 1, "sms", NOW, None, None, None, None, None),
        )
        doubtful, unknown = entry(1, doubt=True), Outcome("in_doubt", None, "no answer", "Temporary failure")
        await journal.change([Transition(doubtful, State.SENDING, State.WAITING, NOW + 5, NOW, unknown)])
        first = (key, 1, 1, "sms", NOW, NOW + 5, "in_doubt", None, "no answer", "Temporary failure")
        assert file_reader(path).lives([1])[0].attempts == (first,)
        (due,) = (await journal.due(NOW, {"sms": 1})).entries
        again = due.begun("sms", b"12345678", NOW + 7)
        await journal.change([Transition(again, State.READY, State.SENDING, NOW + 7)])
        assert file_reader(path).lives([1])[0].attempts == (
            first,
            (key, 1, 2, "sms", NOW + 7, None, None, None, None, None),
        )
        accepted = Outcome("accepted", "p1")
        await journal.change([Transition(again, State.SENDING, State.SENT, NOW + 9, None, accepted)])
    second = (key, 1, 2, "sms", NOW + 7, NOW + 9, "accepted", "p1", None, None)
    emptied = (*first[:-1], None)  # the words with the variables, once the message is sent
    assert file_reader(path).lives([1])[0].attempts == (emptied, second)


async def test_a_repeat_knows_when_the_first_try_under_its_key_began(path: Path) -> None:
    """However often it is tried, and under a new key there is another first try."""
    async with open_journal_file(path) as journal:
        await make_ready(journal, 1)
        found, begun = entry(1)._replace(stay_tries=0, begun_at=0), []
        for number in range(3):
            found = found.begun("sms", b"12345678", NOW + number)
            await journal.change([Transition(found, State.READY, State.SENDING, NOW + number)])
            waits = Transition(found, State.SENDING, State.WAITING, NOW, NOW, Outcome("try_again"))
            await journal.change([waits])
            (found,) = (await journal.due(NOW, {"sms": 1})).entries
            begun.append((found.stay_tries, found.begun_at))
        assert begun == [(1, NOW), (2, NOW), (3, NOW)]
        assert found.anew().begun("sms", b"12345678", NOW + 9).begun_at == NOW + 9


async def test_attempts_that_failed_stay_recorded_beside_the_one_that_was_accepted(path: Path) -> None:
    """Each with its own channel, also after the message had moved on to another one."""
    async with open_journal_file(path) as journal:
        await make_ready(journal, 1)
        await journal.change([Transition(entry(1), State.READY, State.SENDING, NOW)])
        spent = entry(1).given_up("no such number")
        refused = Outcome("refused", None, "no such number")
        await journal.change([Transition(spent, State.SENDING, State.READY, NOW + 1, outcome=refused)])
        second = spent.begun("email", b"12345678", NOW + 2)
        await journal.change([Transition(second, State.READY, State.SENDING, NOW + 2)])
        await journal.receive([Receipt("email", "p2", True, "ok", NOW, NOW, "1")])  # not yet: it is under way
        outcome = Outcome("accepted", "p2")
        await journal.change([Transition(second, State.SENDING, State.SENT, NOW + 3, None, outcome)])
    life = file_reader(path).lives([1])[0]
    assert [each[1:] for each in life.attempts] == [
        (1, 1, "sms", NOW, NOW + 1, "refused", None, "no such number", None),
        (2, 1, "email", NOW + 2, NOW + 3, "accepted", "p2", None, None),
    ]
    assert life.message is not None
    assert life.message.state is State.DELIVERED


async def test_the_same_malformed_element_is_one_record_with_a_count(path: Path) -> None:
    async with open_journal_file(path) as journal:
        for at in (NOW, NOW + 7):
            await journal.take([], [Malformed('{"id":1}', "why", 1), Malformed("[]", "why", None)], at)
    (record,) = file_reader(path).lives([1])[0].malformed
    assert (record.raw, record.times, record.first_at, record.last_at) == ('{"id":1}', 2, NOW, NOW + 7)


async def test_a_malformed_message_is_dequeued_and_then_failed_once(path: Path) -> None:
    """It is told as any message is; seen again, both events go out again, unless they wait anyway."""
    bad = Malformed('{"id":1}', "why", 1)
    async with open_journal_file(path) as journal:
        for at in (NOW, NOW + 1):
            assert not await journal.take([], [bad], at)
            assert [row.status for row in await journal.outbox(0, 10)] == ["dequeued", "error"]
        first = await journal.outbox(0, 10)
        await journal.accept(first, NOW)
        assert not await journal.take([message(1)], [], NOW + 2)
        again = await journal.outbox(0, 10)
        assert [row.body for row in again] == [row.body for row in first]
        await journal.accept(again, NOW)
    assert file_reader(path).audit().is_balanced
    life = file_reader(path).lives([1])[0]
    assert life.message is not None
    assert life.message.state is State.FAILED


async def test_batches_that_may_be_lost_are_counted_with_what_came_of_them(path: Path) -> None:
    """The count is in the transaction of the messages that came, or in one of its own."""
    async with open_journal_file(path) as journal:
        assert file_reader(path).audit().lost == (0, None)
        await journal.take([message(1)], [], NOW, lost=1)
        await journal.take([], [], NOW + 5, lost=1)
        await journal.take([message(2)], [], NOW + 9)
    assert file_reader(path).audit().lost == (2, NOW + 5)


async def test_repeats_of_forgotten_messages_do_not_gather(path: Path) -> None:
    async with open_journal_file(path) as journal:
        await make_ready(journal, 1)
        failed = StatusEvent(1, "error", NOW, details="expired")
        await journal.change([Transition(entry(1), State.READY, State.FAILED, NOW, events=(failed,))])
        await journal.accept(await journal.outbox(0, 10), NOW)
        assert await journal.prune(NOW + 1, 10) == 1
        for _ in range(20):
            await journal.take([message(1)], [], NOW)
            await journal.accept(await journal.outbox(0, 10), NOW)
    assert [event.status for event in file_reader(path).lives([1])[0].events] == ["dequeued", "error"]


async def test_no_statement_of_the_line_reads_a_whole_table(path: Path) -> None:
    """Each one finds its rows by a key or an index, however many messages the journal holds."""
    statements: list[str] = []
    async with open_journal_file(path) as journal:
        journal._db.set_trace_callback(statements.append)
        await walk_through_everything(journal)
        journal._db.set_trace_callback(None)
        steps = plans_of(journal._db, statements)
    assert len(steps) > 40
    harmless = re.compile(
        r"SCAN (json_each VIRTUAL TABLE|CONSTANT ROW|era|log|pause|attempt$|\(subquery-"
        r"|receipt USING .*_unmatched)"
    )
    assert {step for step in steps if "SCAN" in step[0] and not harmless.match(step[0])} == set()


async def test_the_start_and_the_sums_read_what_is_open_and_nothing_else(path: Path) -> None:
    """No table that grows with all that was ever sent is read as a whole."""
    statements: list[str] = []
    async with open_journal_file(path) as journal:
        journal._db.set_trace_callback(statements.append)
        written(journal._db)
        await journal.recover(NOW, ["sms"])
        await journal.counts()
        await journal.account()
        journal._db.set_trace_callback(None)
        steps = plans_of(journal._db, statements)
    of_everything = re.compile(r"SCAN (message|event|attempt|receipt|tombstone)\b(?! USING)")
    assert len(steps) > 10
    assert {step for step in steps if of_everything.match(step[0])} == set()


async def test_the_journal_itself_takes_only_steps_that_the_table_has(path: Path) -> None:
    """What it does of its own accord, at the start and for receipts, stands in the table of states too."""
    async with open_journal_file(path) as journal:
        journal._db.executescript(
            "CREATE TEMP TABLE step (before, after);"
            "CREATE TEMP TRIGGER stepped AFTER UPDATE OF state ON message WHEN old.state <> new.state"
            " BEGIN INSERT INTO step VALUES (old.state, new.state); END"
        )
        await walk_through_everything(journal)
        await journal.recover(NOW, ["email"])
        taken = {
            (State(before), State(after))
            for before, after in journal._db.execute("SELECT before, after FROM step")
        }
    assert {(before, after) for before, after in taken if after not in TRANSITIONS[before].values()} == set()
    own = {(State.READY, State.WAITING), (State.WAITING, State.IN_DOUBT), (State.SENT, State.FAILED)}
    own |= {(State.WAITING, State.SENT), (State.IN_DOUBT, State.SENT), (State.READY, State.SENT)}
    assert own | {(State.TAKEN, State.SET_ASIDE), (State.WAITING, State.READY)} <= taken
