"""A growing journal: the cost of a message stays the same, and the space of forgotten ones is returned."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from deliveryd.journal.base import OutboxRow
from deliveryd.journal.journal import Journal
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sql import account, outbox
from deliveryd.journal.sql.account import of_removed_providers
from deliveryd.journal.sqlite import opening as sqlite_file
from deliveryd.journal.sqlite.files import SLACK
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.model import Entry, Malformed, Receipt, StatusEvent, Transition
from deliveryd.states import State
from support.journal_walk import plans_of, walk_through_everything
from support.messages import queued_message as message

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000_000_000
SECOND = 1_000_000

READ_AS_A_WHOLE = {
    "message USING INDEX message_moving": "what is under way or in doubt, bounded by the places",
    "message USING COVERING INDEX message_waiting": "how many wait, counted in their index alone",
    "message USING COVERING INDEX message_held": "the same for what waits for an answer or for room",
    "message USING COVERING INDEX message_ended": "the account, which is read beside the writer",
    "malformed USING COVERING INDEX malformed_open": "what waits for an operator",
    "receipt USING COVERING INDEX receipt_unmatched": "what fits no attempt; the line asks only for one",
    "event USING INDEX event_refused": "what waits for an operator",
    "log": "one row: what the log counts",
    "pause": "what operators paused: one row for each order, however many messages it holds",
    "attempt": "of one message, when both places where they stand were searched",
    "json_each VIRTUAL TABLE INDEX 1:": "the ids of a batch",
    "CONSTANT ROW": "no table",
    "era": "stretches of four hours within the retention",
    "(subquery": "the one row that is being kept",
}
"""All that any statement of the worker reads from end to end, and why it may."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def entry(id_: int) -> Entry:
    return Entry(*message(id_), provider="sms", stay_tries=1)


async def take(journal: Journal, ids: Sequence[int], text: str = "x") -> None:
    """Take messages and have their `dequeued` accepted."""
    await journal.take([message(id_, text=text) for id_ in ids], [], NOW)
    await journal.accept(await journal.outbox(0, 100_000), NOW)


async def end(journal: Journal, ids: Sequence[int], text: str = "x") -> list[OutboxRow]:
    """Bring messages from the queue to an end that isn't reported yet; return the events that wait."""
    await take(journal, ids, text)
    failed = [
        Transition(
            entry(id_),
            State.READY,
            State.FAILED,
            NOW,
            events=(StatusEvent(id_, "error", NOW, details="expired"),),
        )
        for id_ in ids
    ]
    await journal.change(failed)
    return await journal.outbox(0, 100_000)


async def report(journal: Journal, rows: Sequence[OutboxRow]) -> None:
    await journal.accept(rows, NOW)


async def words(journal: Journal, id_: int) -> list[str]:
    """What the service hears when a message that ended comes again."""
    assert not await journal.take([message(id_)], [], NOW + SECOND)
    rows = await journal.outbox(0, 100_000)
    await report(journal, rows)
    return [row.body for row in rows]


def size_of(path: Path) -> int:
    return path.stat().st_size


def bytes_of(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        (size,) = db.execute("SELECT sum(pgsize) FROM dbstat WHERE name = ?", (table,)).fetchone()
    return int(size)


# what it costs


async def everything_that_a_worker_asks(journal: SqliteJournal) -> None:
    """The start, the line with all its branches, the sums, and forgetting."""
    outbox.written(journal._db)
    await journal.recover(NOW, ["sms"])
    await walk_through_everything(journal)
    await journal.recover(NOW, ["email"])
    await journal.counts()
    await journal.prune(NOW + SECOND, 10)
    await journal.give_back(1)
    account.account(journal._db)


async def test_no_query_of_a_worker_scans_a_table_that_grows(path: Path) -> None:
    """Every scan in a query plan is listed here, with the reason why it doesn't grow with ended messages."""
    statements: list[str] = []
    async with open_journal_file(path) as journal:
        journal._db.set_trace_callback(statements.append)
        await everything_that_a_worker_asks(journal)
        journal._db.set_trace_callback(None)
        steps = plans_of(journal._db, [statement for statement in statements if "PRAGMA" not in statement])
    scans = {step for step in steps if step[0].startswith("SCAN")}
    assert len(steps) > 60
    assert len(scans) > 5
    named = tuple(f"SCAN {name}" for name in READ_AS_A_WHOLE)
    assert {step for step in scans if not step[0].startswith(named)} == set()


def reads_rows(db: sqlite3.Connection, statement: str) -> bool:
    """Whether a statement reads columns of messages from their rows, and not from an index alone."""
    (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'message'").fetchone()
    steps = [step[1:4] for step in db.execute(f"EXPLAIN {statement}")]
    rows = {cursor for code, cursor, page in steps if code == "OpenRead" and page == root}
    return any(code == "Column" and cursor in rows for code, cursor, _ in steps)


async def test_waiting_messages_are_counted_and_found_by_index_alone(path: Path) -> None:
    """A million of them delay no other query."""
    statements: list[str] = []
    async with open_journal_file(path) as journal:
        await take(journal, range(1, 21))
        await journal.change(
            [Transition(entry(id_), State.READY, State.WAITING, NOW, NOW) for id_ in range(1, 21)]
        )
        journal._db.set_trace_callback(statements.append)
        assert (await journal.recover(NOW, ["sms"])).waiting == 20
        assert (await journal.counts()).states == {State.WAITING: 20}
        assert len((await journal.due(NOW, {"sms": 5})).entries) == 5
        journal._db.set_trace_callback(None)
        steps = plans_of(journal._db, statements)
        parts = [part for each in statements for part in each.split("UNION ALL")]
        counting = [part for part in parts if "count(*) FROM message WHERE waits_at IS NOT NULL" in part]
        assert counting
        assert not any(reads_rows(journal._db, each) for each in (*counting, account._TIMED))
    assert not any("TEMP B-TREE" in step for step, statement in steps if "due_at <=" in statement)
    assert {
        step
        for step, _ in steps
        if re.match(r"SCAN message(?! USING (COVERING INDEX message_held|INDEX message_moving))", step)
    } == set()


async def test_what_was_left_at_removed_providers_is_counted_in_the_order_of_an_index(path: Path) -> None:
    """Neither what waits nor what is to be confirmed is read row by row and sorted."""
    statements: list[str] = []
    async with open_journal_file(path) as journal:
        journal._db.set_trace_callback(statements.append)
        assert of_removed_providers(journal._db, ["sms"]) == []
        journal._db.set_trace_callback(None)
        steps = plans_of(journal._db, statements)
    sorted_ = {statement for step, statement in steps if "TEMP B-TREE" in step}
    assert {statement for statement in sorted_ if "ended_at IS NULL" not in statement} == set()


async def test_the_account_includes_all_commits_without_using_the_writing_thread(path: Path) -> None:
    commits: list[int] = []
    async with open_journal_file(
        path, observe=lambda _seconds, operations: commits.append(operations)
    ) as journal:
        await report(journal, await end(journal, range(1, 11)))
        await take(journal, range(11, 14))
        before = sum(commits)
        assert await journal.account() == (13, {State.READY: 3}, {State.FAILED: 10}, 0, 0)
        assert sum(commits) == before


# forgetting


async def test_messages_that_have_to_stay_do_not_block_the_deletion_of_others(path: Path) -> None:
    """Forty refused events precede what can be deleted; each sweep skips some, and none is lost."""
    async with open_journal_file(path) as journal:
        for row in await end(journal, range(1, 41)):
            await journal.refuse(row, "400", NOW)
        await report(journal, await end(journal, range(41, 44)))
        forgotten = [await journal.prune(NOW + 1, 1) for _ in range(20)]
        assert sum(forgotten) == 3
        assert (await journal.counts()).events_refused == 40
        assert (await journal.account()).ended == 40


def posts_of(journal: SqliteJournal) -> int:
    (number,) = journal._db.execute("SELECT count(*) FROM post").fetchone()
    return int(number)


@pytest.mark.slow
async def test_a_post_stays_as_long_as_one_of_its_events_does(path: Path) -> None:
    """A hundred messages, each event accepted by itself; those that stay keep their time of acceptance."""
    async with open_journal_file(path) as journal:
        for id_ in range(1, 101):
            for row in await end(journal, [id_]):
                await journal.accept([row], NOW + id_)
        await journal.take([message(200)], [], NOW)
        await journal.accept(await journal.outbox(0, 1), NOW + 200)
        assert posts_of(journal) == 201
        assert await journal.prune(NOW + 1, 30) == 30
        assert posts_of(journal) <= 201 - 30
        while await journal.prune(NOW + 1, 30):
            pass
        assert await journal.prune(NOW + 1000, 30) == 0
        assert posts_of(journal) == 1
        assert [event.settled_at for event in file_reader(path).lives([200])[0].events] == [NOW + 200]


@pytest.mark.parametrize(
    "event",
    [
        StatusEvent(1, "error", NOW + 1, details='missing placeholders: "straße", \ud800'),
        StatusEvent(1, "delivered", NOW + 123_456, "sms", NOW - 7),
    ],
    ids=["with details", "with channel and instant"],
)
async def test_a_tombstone_restores_the_events_byte_for_byte(path: Path, event: StatusEvent) -> None:
    async with open_journal_file(path, details_field="reason") as journal:
        await take(journal, [1])
        await journal.change([Transition(entry(1), State.READY, State.FAILED, NOW, events=(event,))])
        await report(journal, await journal.outbox(0, 9))
        before = await words(journal, 1)
        assert await journal.prune(NOW + 1, 9) == 1
        assert await words(journal, 1) == before
        assert len(before) == 2


async def test_a_forgotten_malformed_message_keeps_its_two_events(path: Path) -> None:
    async with open_journal_file(path) as journal:
        await journal.take([], [Malformed('{"id":1}', "no settings", 1)], NOW)
        dequeued, error = await journal.outbox(0, 9)
        await report(journal, [dequeued, error])
        assert await journal.prune(NOW + 1, 9) == 2  # the message, and the element that it was made of
        assert await words(journal, 1) == [dequeued.body, error.body]
    assert file_reader(path).lives([1])[0].tombstone == (dequeued.body, error.body)


async def test_a_flood_of_unmatched_receipts_is_deleted_completely(path: Path) -> None:
    """A sweep returns more than 0 as long as anything old enough is left."""
    async with open_journal_file(path) as journal:
        await journal.receive([Receipt("sms", f"p{n}", True, "delivered", NOW, NOW) for n in range(250)])
        steps = [await journal.prune(NOW + 1, 100) for _ in range(4)]
        assert steps == [100, 100, 50, 0]
        assert (await journal.counts()).receipts_unmatched == 0


@pytest.mark.slow
async def test_a_tombstone_takes_few_bytes(path: Path) -> None:
    """It is never deleted: ten million of them, at 48 bytes each, have to fit on any disk."""
    async with open_journal_file(path) as journal:
        await take(journal, range(1, 10_001))
        sent = [
            Transition(
                entry(id_), State.READY, State.SENDING, NOW, events=(StatusEvent(id_, "sent", NOW + id_),)
            )
            for id_ in range(1, 10_001)
        ]
        await journal.change(sent)
        await journal.change([Transition(entry(c.entry.id), State.SENDING, State.SENT, NOW) for c in sent])
        await report(journal, await journal.outbox(0, 100_000))
        assert await journal.prune(NOW + 1, 10_000) == 10_000
    assert bytes_of(path, "tombstone") < 48 * 10_000


# room


@pytest.mark.slow
async def test_the_space_of_forgotten_messages_is_returned_to_the_file_system(path: Path) -> None:
    """Sixty megabytes of messages; after they are forgotten the file shrinks in steps."""
    async with open_journal_file(path) as journal:
        for first in range(0, 3000, 500):
            await report(journal, await end(journal, range(first, first + 500), "x" * 20_000))
        while await journal.prune(NOW + 1, 100):
            pass
        steps = 0
        while given := await journal.give_back(1000):
            assert given <= 1000
            steps += 1
        assert steps > 5
        (free,) = journal._db.execute("PRAGMA freelist_count").fetchone()
        assert free <= SLACK * 1.2
    assert size_of(path) < 25_000_000


async def test_a_small_journal_keeps_its_free_pages_for_reuse(path: Path) -> None:
    async with open_journal_file(path) as journal:
        await report(journal, await end(journal, range(200), "x" * 10_000))
        while await journal.prune(NOW + 1, 100):
            pass
        assert await journal.give_back(1000) == 0


@pytest.mark.slow
async def test_the_log_is_truncated_again_after_a_long_read_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody reads as of one instant, the log can't begin anew and grows; then it is short again."""
    monkeypatch.setattr(sqlite_file, "LOG_LIMIT", 1 << 20)
    log = path.with_name("journal.db-wal")
    async with open_journal_file(path) as journal:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM message").fetchone()
            for first in range(0, 1000, 100):
                await report(journal, await end(journal, range(first, first + 100), "x" * 10_000))
            assert size_of(log) > 8 << 20
        for id_ in range(1000, 1003):
            await take(journal, [id_])
        assert size_of(log) <= 1 << 20
