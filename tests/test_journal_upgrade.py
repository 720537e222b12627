"""A journal that an earlier deliveryd wrote goes on with this one, and nothing of it is lost."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from deliveryd.errors import JournalError
from deliveryd.journal.audit import audit
from deliveryd.journal.base import Account, Change, Outcome, Receipt
from deliveryd.journal.history import AttemptRecord, read_life
from deliveryd.journal.schema import APPLICATION_ID
from deliveryd.journal.sqlite import open_journal
from deliveryd.journal.upgrades import upgrade
from deliveryd.model import Entry
from deliveryd.states import State

pytestmark = pytest.mark.anyio

FORMAT_1 = """
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    settings_id INTEGER, customer_id INTEGER, variables TEXT,
    state INTEGER NOT NULL,
    taken_at INTEGER NOT NULL,
    due_at INTEGER,
    lane TEXT NOT NULL DEFAULT '',
    tries INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    spent TEXT NOT NULL DEFAULT '[]',
    doubt TEXT,
    ended_at INTEGER
);
CREATE INDEX message_open ON message (id) WHERE ended_at IS NULL;
CREATE INDEX message_waiting ON message (lane, due_at) WHERE state = 3;
CREATE INDEX message_ended ON message (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE attempt (
    message_id INTEGER NOT NULL, number INTEGER NOT NULL,
    channel TEXT NOT NULL,
    sends INTEGER NOT NULL DEFAULT 1,
    started_at INTEGER NOT NULL, ended_at INTEGER,
    verdict TEXT, provider_id TEXT, reason TEXT,
    PRIMARY KEY (message_id, number)
) WITHOUT ROWID;
CREATE INDEX attempt_provider ON attempt (provider_id, channel) WHERE provider_id IS NOT NULL;

CREATE TABLE event (
    message_id INTEGER NOT NULL, seq INTEGER NOT NULL,
    status TEXT NOT NULL,
    body TEXT NOT NULL,
    settled_at INTEGER,
    refused TEXT,
    PRIMARY KEY (message_id, seq)
) WITHOUT ROWID;
CREATE INDEX event_waiting ON event (seq) WHERE settled_at IS NULL;
CREATE INDEX event_refused ON event (seq) WHERE refused IS NOT NULL;

CREATE TABLE malformed (
    digest TEXT PRIMARY KEY, raw TEXT NOT NULL, reason TEXT NOT NULL, message_id INTEGER,
    first_at INTEGER NOT NULL, last_at INTEGER NOT NULL, times INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID;
CREATE INDEX malformed_last ON malformed (last_at);
CREATE INDEX malformed_message ON malformed (message_id) WHERE message_id IS NOT NULL;

CREATE TABLE receipt (
    seq INTEGER PRIMARY KEY,
    channel TEXT NOT NULL, provider_id TEXT NOT NULL, delivered INTEGER NOT NULL, status TEXT NOT NULL,
    reported_at INTEGER NOT NULL, received_at INTEGER NOT NULL,
    message_id INTEGER
);
CREATE INDEX receipt_unmatched ON receipt (provider_id, channel) WHERE message_id IS NULL;
CREATE INDEX receipt_unmatched_since ON receipt (received_at) WHERE message_id IS NULL;
CREATE INDEX receipt_message ON receipt (message_id) WHERE message_id IS NOT NULL;

CREATE TABLE past (id INTEGER PRIMARY KEY, dequeued TEXT, latest TEXT);

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

CONTENT = """
INSERT INTO meta VALUES ('namespace', '0123456789ab'), ('settled_seq', '3');
INSERT INTO message (id, settings_id, customer_id, variables, state, taken_at, ended_at) VALUES
    (1, 2, 3, '{}', 1, 5, NULL), (2, 2, 3, '{}', 9, 5, 6);
INSERT INTO event VALUES (1, 4, 'dequeued', '{}', NULL, NULL), (2, 3, 'dequeued', '{}', 6, '400');
INSERT INTO receipt VALUES (1, 'sms', 'p1', 1, 'ok', 5, 5, NULL);
INSERT INTO malformed VALUES ('ff', '{}', 'no id', NULL, 5, 5, 1);
INSERT INTO past VALUES (9, '{}', '{}');
"""


CONTENT_3 = """
DELETE FROM meta;
INSERT INTO meta VALUES
    ('namespace', '0123456789ab'), ('settled_seq', '13'), ('taken', '8'), ('forgotten', '0');
INSERT INTO message VALUES
    (1, 2, 3, '{}', 6, 5, NULL, 'sms', 1, 1, '[]', NULL, 60),
    (2, 2, 3, '{}', 7, 5, NULL, 'sms', 1, 1, '[]', NULL, 70),
    (3, 2, 3, '{}', 9, 5, NULL, '', 0, 0, '[]', NULL, 101),
    (4, 2, 3, '{}', 1, 5, NULL, '', 0, 0, '[]', NULL, NULL),
    (5, 2, 3, '{}', 4, 5, NULL, 'sms', 0, 1, '[]', NULL, NULL),
    (6, 2, 3, '{}', 4, 5, NULL, 'sms', 1, 1, '[]', '0123456789ab-6-1', NULL),
    (7, 2, 3, '{}', 5, 5, NULL, 'sms', 1, 1, '[]', '0123456789ab-7-1', NULL),
    (8, 2, 3, '{}', 6, 5, NULL, 'email', 1, 2, '[["sms", "no"]]', NULL, 80);
INSERT INTO attempt VALUES
    (1, 1, 'sms', 1, 50, 60, 'accepted', 'p1', NULL),
    (2, 1, 'sms', 2, 51, 61, 'accepted', 'p2', 'settled by an operator'),
    (5, 1, 'sms', 1, 52, NULL, NULL, NULL, NULL),
    (6, 1, 'sms', 2, 53, NULL, NULL, NULL, NULL),
    (7, 1, 'sms', 1, 54, 64, 'in_doubt', NULL, 'no answer'),
    (8, 1, 'sms', 1, 55, 65, 'refused', NULL, 'no'),
    (8, 2, 'email', 1, 56, 80, 'accepted', 'p8', NULL);
INSERT INTO event VALUES
    (1, 1, 'dequeued', '1d', 100, NULL, NULL), (2, 2, 'dequeued', '2d', 100, NULL, NULL),
    (3, 3, 'dequeued', '3d', 101, '400', NULL), (1, 4, 'sent', '1s', 102, NULL, NULL),
    (2, 5, 'sent', '2s', NULL, NULL, NULL), -- it was refused, and is retried
    (2, 6, 'delivered', '2v', 103, NULL, NULL), (2, 7, 'delivered', '2v', NULL, NULL, NULL),
    (4, 8, 'dequeued', '4d', NULL, NULL, NULL), (5, 9, 'dequeued', '5d', 104, NULL, NULL),
    (6, 10, 'dequeued', '6d', 104, NULL, NULL), (7, 11, 'dequeued', '7d', 104, NULL, NULL),
    (8, 12, 'dequeued', '8d', 104, NULL, NULL), (8, 13, 'sent', '8s', 105, NULL, NULL);
"""


@pytest.fixture
def path_3(tmp_path: Path) -> Path:
    """A journal of format 3, with all that can be there."""
    path = tmp_path / "journal.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(FORMAT_1)
    upgrade(db, 1, 3)
    db.executescript(f"{CONTENT_3} PRAGMA application_id = {APPLICATION_ID}")
    db.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of format 1."""
    path = tmp_path / "journal.db"
    db = sqlite3.connect(path)
    db.executescript(
        f"{FORMAT_1} {CONTENT} PRAGMA user_version = 1; PRAGMA application_id = {APPLICATION_ID}"
    )
    db.close()
    return path


def shape(path: Path) -> dict[str, object]:
    """Tables by their columns, indexes by their definitions."""
    db = sqlite3.connect(path)
    try:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns: dict[str, object] = {
            table: db.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall()
            for table in tables
        }
        indexes = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        views = db.execute(
            "SELECT name, replace(sql, '-- all of them', '') FROM sqlite_master WHERE type = 'view'"
        )
        return columns | {name: re.sub(r"\s+", " ", sql) for name, sql in [*indexes, *views]}
    finally:
        db.close()


async def test_a_journal_of_format_1_is_brought_to_the_present_one_with_all_that_it_holds(
    path: Path, tmp_path: Path
) -> None:
    async with open_journal(path) as journal:
        assert (await journal.recover(7, ["sms"])).taken == [Entry(1, 2, 3, {}, taken_at=5)]
        counts = await journal.counts()
        assert (counts.events_waiting, counts.events_refused) == (1, 1)
        assert (counts.malformed, counts.receipts_unmatched) == (1, 1)
        assert await journal.account() == Account(3, {State.TAKEN: 1}, 1, 1)
    async with open_journal(tmp_path / "new.db"):
        pass
    assert shape(path) == shape(tmp_path / "new.db")


async def test_until_the_worker_has_opened_it_commands_say_what_to_do(path: Path) -> None:
    with pytest.raises(JournalError, match="has format 1: start deliveryd once"):
        read_life(path, 1)
    async with open_journal(path):
        pass
    assert read_life(path, 1).is_known


async def test_an_upgrade_that_fails_leaves_the_journal_as_it_was(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("DROP INDEX receipt_unmatched")
    db.close()
    before = shape(path)
    with pytest.raises(JournalError, match="no such index"):
        async with open_journal(path):
            pass
    assert shape(path) == before


async def test_a_journal_of_format_3_tells_all_that_it_told_before(path_3: Path, tmp_path: Path) -> None:
    """When each event was accepted or why it wasn't, and all attempts, those under way among them."""
    async with open_journal(path_3) as journal:
        assert await journal.account() == Account(
            8, {State.TAKEN: 1, State.SENDING: 2, State.IN_DOUBT: 1}, 4, 0
        )
    assert audit(path_3).is_balanced
    events = {
        id_: [(e.status, e.body, e.settled_at, e.refused) for e in read_life(path_3, id_).events]
        for id_ in range(1, 9)
    }
    assert events[1] == [("dequeued", "1d", 100, None), ("sent", "1s", 102, None)]
    assert events[2] == [
        ("dequeued", "2d", 100, None), ("sent", "2s", None, None),
        ("delivered", "2v", 103, None), ("delivered", "2v", None, None),
    ]  # fmt: skip
    assert events[3] == [("dequeued", "3d", 101, "400")]
    assert events[4] == [("dequeued", "4d", None, None)]
    assert [each[0][2] for each in list(events.values())[4:]] == [104, 104, 104, 104]
    assert events[8][1] == ("sent", "8s", 105, None)
    attempts = {id_: read_life(path_3, id_).attempts for id_ in range(1, 9)}

    def attempt(id_: int, number: int, *facts: object) -> AttemptRecord:
        return AttemptRecord(number, f"0123456789ab-{id_}-{number}", *facts)  # type: ignore[arg-type]

    assert attempts == {
        1: (attempt(1, 1, "sms", 1, 50, 60, "accepted", "p1", None),),
        2: (attempt(2, 1, "sms", 2, 51, 61, "accepted", "p2", "settled by an operator"),),
        3: (),
        4: (),
        5: (attempt(5, 1, "sms", 1, 52, None, None, None, None),),
        6: (attempt(6, 1, "sms", 2, 53, None, None, None, None),),
        7: (attempt(7, 1, "sms", 1, 54, 64, "in_doubt", None, "no answer"),),
        8: (
            attempt(8, 1, "sms", 1, 55, 65, "refused", None, "no"),
            attempt(8, 2, "email", 1, 56, 80, "accepted", "p8", None),
        ),
    }
    async with open_journal(tmp_path / "new.db"):
        pass
    assert shape(path_3) == shape(tmp_path / "new.db")


async def test_a_journal_of_format_3_goes_on_where_it_was(path_3: Path) -> None:
    """The outbox in its order, attempts in doubt under their ids, receipts for what was sent before."""
    async with open_journal(path_3) as journal:
        left = await journal.recover(200, ["sms", "email"])
        assert [entry.id for entry in left.taken] == [4]
        assert [(entry.id, entry.doubt) for entry, _ in left.doubtful] == [
            (id_, f"0123456789ab-{id_}-1") for id_ in (5, 6, 7)
        ]
        assert left.reporting == [2]
        waiting = await journal.outbox(0, 10)
        assert [(row.message_id, row.status) for row in waiting] == [
            (2, "sent"), (2, "delivered"), (4, "dequeued"),
        ]  # fmt: skip
        await journal.accept(waiting[:2], 201)
        await journal.accept(waiting[2:], 202)
        again = left.doubtful[1].entry
        unknown = Outcome("in_doubt", None, "the worker ended")
        await journal.change([Change(again, State.SENDING, State.WAITING, 203, 203, unknown)])
        await journal.due(203, {"sms": 1})
        await journal.change([Change(again, State.READY, State.SENDING, 204)])
        assert await journal.receive([Receipt("email", "p8", True, "ok", 205, 205)]) == ["matched"]
    assert [(each.sends, each.started_at, each.verdict) for each in read_life(path_3, 6).attempts] == [
        (3, 53, None)
    ]
    assert [event.settled_at for event in read_life(path_3, 2).events] == [100, 201, 103, 201]
    assert [event.settled_at for event in read_life(path_3, 4).events] == [202]
    assert audit(path_3).is_balanced


async def test_events_that_wait_behind_all_others_keep_their_numbers(path_3: Path) -> None:
    db = sqlite3.connect(path_3)
    with db:
        db.execute("UPDATE event SET settled_at = 99 WHERE settled_at IS NULL AND seq < 8")
        db.execute("UPDATE event SET seq = 21 WHERE seq = 8")
    db.close()
    async with open_journal(path_3) as journal:
        assert [row.seq for row in await journal.outbox(0, 10)] == [21]
        await journal.accept(await journal.outbox(0, 10), 200)
    assert audit(path_3).is_balanced
