"""A journal that an earlier deliveryd wrote goes on with this one, and nothing of it is lost."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from deliveryd.errors import JournalError
from deliveryd.journal.base import Account
from deliveryd.journal.history import read_life
from deliveryd.journal.schema import APPLICATION_ID
from deliveryd.journal.sqlite import open_journal
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
        return columns | {name: re.sub(r"\s+", " ", sql) for name, sql in indexes}
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
