"""The journal's tables, what makes a file a journal, and how an event looks in it."""

from __future__ import annotations

import os
import sqlite3
import uuid
from pathlib import Path

from deliveryd.errors import JournalError
from deliveryd.journal.rows import to_json
from deliveryd.model import StatusEvent, format_instant
from deliveryd.runtime.own_files import open_own

VERSION = 6
APPLICATION_ID = 0x64_6C_76_64  # "dlvd"

# A partial index has the columns of its condition too: SQLite looks at each row otherwise, only to count.
TABLES = """
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    settings_id INTEGER, customer_id INTEGER,  -- NULL: the queue's element was malformed
    variables TEXT,                       -- NULL besides: emptied when the message was sent
    state INTEGER NOT NULL,
    taken_at INTEGER NOT NULL,
    due_at INTEGER,                       -- while it waits: when it goes on
    channel TEXT NOT NULL DEFAULT '',     -- the channel it is bound to
    tries INTEGER NOT NULL DEFAULT 0,     -- those on that channel that count for retry.attempts
    key INTEGER NOT NULL DEFAULT 1,       -- the number of its idempotency key
    number INTEGER NOT NULL DEFAULT 0,    -- all tries under this key
    spent TEXT NOT NULL DEFAULT '[]',     -- channels that failed for good, with reasons
    doubt INTEGER NOT NULL DEFAULT 0,     -- 1: the outcome of a try under this key is unknown
    content TEXT,                         -- what a try under this key said that may have arrived
    digest BLOB,                          -- that of what the latest try said
    ended_at INTEGER,
    -- the try that is under way, or was accepted:
    started_at INTEGER, accepted_at INTEGER,
    provider_id TEXT, reason TEXT,
    waits_for TEXT                        -- while it waits: what wakes it before it is due (see waits.py)
);
CREATE INDEX message_moving ON message (id) WHERE ended_at IS NULL AND due_at IS NULL;
CREATE INDEX message_waiting ON message (channel, state, waits_for, due_at)
    WHERE state = 3 AND waits_for IS NULL;
CREATE INDEX message_held ON message (waits_for, due_at) WHERE waits_for IS NOT NULL AND due_at IS NOT NULL;
CREATE INDEX message_held_until ON message (due_at, waits_for)
    WHERE waits_for IS NOT NULL AND due_at IS NOT NULL;
CREATE INDEX message_ended ON message (ended_at, state) WHERE ended_at IS NOT NULL;

CREATE INDEX message_provider ON message (started_at / 14400000000, provider_id, channel)
    WHERE provider_id IS NOT NULL;        -- by eras of four hours: see Matching

CREATE TABLE unaccepted (                 -- tries that failed, or whose outcome was unknown
    message_id INTEGER NOT NULL, key INTEGER NOT NULL, number INTEGER NOT NULL,
    channel TEXT NOT NULL,
    started_at INTEGER NOT NULL, ended_at INTEGER,
    verdict TEXT, provider_id TEXT, reason TEXT,
    PRIMARY KEY (message_id, key, number)
) WITHOUT ROWID;

CREATE VIEW attempt AS                    -- all of them; twice what was in doubt and is settled as sent
    SELECT message_id, key, number, channel, started_at, ended_at, verdict, provider_id, reason
    FROM unaccepted
    UNION ALL SELECT id, key, number, channel, started_at, accepted_at,
        iif(accepted_at IS NULL, NULL, 'accepted'), provider_id, reason
    FROM message WHERE state = 4 OR accepted_at IS NOT NULL;

CREATE TABLE event (                      -- those above meta's settled_seq wait
    seq INTEGER PRIMARY KEY,
    message_id INTEGER NOT NULL,
    status TEXT NOT NULL,
    body TEXT NOT NULL,                   -- the JSON that the service gets
    refused_at INTEGER, refused TEXT,     -- when and why it was set aside
    dropped_at INTEGER,                   -- when an operator gave it up
    first_seq INTEGER,                    -- its number before it was put behind all others once more
    refusals INTEGER                      -- how often the service refused it
);
CREATE INDEX event_message ON event (message_id);
CREATE INDEX event_refused ON event (seq) WHERE refused IS NOT NULL AND dropped_at IS NULL;

CREATE TABLE post (                       -- what the service accepted at one time: events by their numbers
    last INTEGER PRIMARY KEY, first INTEGER NOT NULL,
    at INTEGER NOT NULL
);

CREATE TABLE malformed (
    digest TEXT PRIMARY KEY, raw TEXT NOT NULL, reason TEXT NOT NULL, message_id INTEGER,
    first_at INTEGER NOT NULL, last_at INTEGER NOT NULL, times INTEGER NOT NULL DEFAULT 1,
    dropped_at INTEGER
) WITHOUT ROWID;
CREATE INDEX malformed_last ON malformed (last_at);
CREATE INDEX malformed_open ON malformed (dropped_at) WHERE dropped_at IS NULL;
CREATE INDEX malformed_message ON malformed (message_id) WHERE message_id IS NOT NULL;

CREATE TABLE receipt (
    seq INTEGER PRIMARY KEY,
    channel TEXT NOT NULL, provider_id TEXT NOT NULL, delivered INTEGER NOT NULL, status TEXT NOT NULL,
    reported_at INTEGER NOT NULL, received_at INTEGER NOT NULL,
    message_id INTEGER,                   -- NULL: it fits no attempt that is known
    reference TEXT,                       -- what the provider echoes: a message's id, or its key
    dropped_at INTEGER
);
CREATE INDEX receipt_unmatched ON receipt (provider_id, channel, message_id, dropped_at)
    WHERE message_id IS NULL AND dropped_at IS NULL;
CREATE INDEX receipt_unmatched_reference ON receipt (reference, channel)
    WHERE message_id IS NULL AND dropped_at IS NULL AND reference IS NOT NULL;
CREATE INDEX receipt_unmatched_since ON receipt (received_at) WHERE message_id IS NULL;
CREATE INDEX receipt_message ON receipt (message_id) WHERE message_id IS NOT NULL;

CREATE TABLE decision (                   -- what operators decided about what lay aside
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, verb TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,
    message_id INTEGER,                   -- NULL: none, or one that is erased
    user TEXT, caller TEXT                -- who gave the order, by the system's word; for whom, as they claim
);
CREATE INDEX decision_message ON decision (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX decision_other ON decision (at) WHERE message_id IS NULL;

CREATE TABLE past (                       -- what is kept of forgotten messages, for ever
    id INTEGER PRIMARY KEY,
    dequeued_at INTEGER,
    at INTEGER, status TEXT, rest TEXT    -- the latest event; NULL: it had no other fields
);

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

_HEADER = 100
"""Bytes at the beginning of a database that tell what it is."""

_FIRST_VALUES = {"settled_seq": "0", "taken": "0", "forgotten": "0"}


def prepare_schema(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty file; check those of any other.

    Raises JournalError when the file belongs to something else, or has another format.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if objects == 0 and version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only an empty file takes it
        connection.executescript(
            f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; PRAGMA application_id = {APPLICATION_ID};"
        )
        connection.executemany(
            "INSERT INTO meta VALUES (?, ?)", [("namespace", uuid.uuid4().hex[:12]), *_FIRST_VALUES.items()]
        )
        connection.execute("COMMIT")
    verify(connection)


def verify(connection: sqlite3.Connection) -> None:
    """Raise JournalError when the file is no journal, or one of a format that this deliveryd can't read."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    _judge(application, version)


def verify_header(path: Path) -> None:
    """The same by the first bytes of a file, which SQLite never opens: not even a foreign log is replayed.

    A file that is absent or empty is fine. Raises JournalError and OSError.
    """
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
            header = file.read(_HEADER)
    except FileNotFoundError:
        return
    if not header:
        return
    if not header.startswith(b"SQLite format 3\0"):
        raise JournalError(
            "the file is no database; name another in journal.url, or bring back a backup if it was a journal"
        )
    if len(header) < _HEADER:
        raise JournalError("the file is cut short; bring back a backup")
    _judge(int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big"))


def _judge(application: int, version: int) -> None:
    if application != APPLICATION_ID:
        raise JournalError("the file is a database, but no journal of deliveryd; name another in journal.url")
    if version != VERSION:
        raise JournalError(
            f"the journal has format {version}, and this deliveryd reads format {VERSION} only: let the"
            " version that wrote it finish its messages, or name another file in journal.url"
        )


class EventWriter:
    """Writes status events as the JSON that the service gets (interface 6)."""

    def __init__(self, details_field: str) -> None:
        self._details_field = details_field

    def write(self, event: StatusEvent) -> str:
        """One event as JSON text."""
        message_id, status, timestamp, channel, reported_at, details = event
        if channel is None and reported_at is None and details is None:  # nearly every event
            at = format_instant(timestamp)
            return f'{{"timestamp":"{at}","messageId":{message_id},"status":"{status}"}}'
        body: dict[str, object] = {
            "timestamp": format_instant(timestamp),
            "messageId": message_id,
            "status": status,
        }
        if channel is not None:
            body["channel"] = channel
        if reported_at is not None:
            body["reportedAt"] = format_instant(reported_at)
        if details is not None:
            body[self._details_field] = details
        return to_json(body)
