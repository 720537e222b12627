"""Brings journals of earlier formats to the present one, when the worker opens them."""

from __future__ import annotations

import sqlite3

from deliveryd.journal.past import COMPACT

STEPS = {
    1: """
ALTER TABLE event ADD COLUMN dropped_at INTEGER;
ALTER TABLE malformed ADD COLUMN dropped_at INTEGER;
ALTER TABLE receipt ADD COLUMN reference TEXT;
ALTER TABLE receipt ADD COLUMN dropped_at INTEGER;
DROP INDEX event_refused;
CREATE INDEX event_refused ON event (seq) WHERE refused IS NOT NULL AND dropped_at IS NULL;
DROP INDEX receipt_unmatched;
CREATE INDEX receipt_unmatched ON receipt (provider_id, channel)
    WHERE message_id IS NULL AND dropped_at IS NULL;
CREATE INDEX receipt_unmatched_reference ON receipt (reference, channel)
    WHERE message_id IS NULL AND dropped_at IS NULL AND reference IS NOT NULL;
CREATE TABLE decision (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, verb TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,
    message_id INTEGER
);
CREATE INDEX decision_message ON decision (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX decision_other ON decision (at) WHERE message_id IS NULL;
INSERT INTO meta SELECT 'forgotten', count(*) FROM past;
INSERT INTO meta SELECT 'taken', (SELECT count(*) FROM message) + (SELECT count(*) FROM past);
""",
    2: f"""
DROP INDEX message_open;
CREATE INDEX message_moving ON message (id) WHERE ended_at IS NULL AND due_at IS NULL;
DROP INDEX message_waiting;
CREATE INDEX message_waiting ON message (lane, state, due_at) WHERE state = 3;
DROP INDEX attempt_provider;
CREATE INDEX attempt_provider ON attempt (started_at / 14400000000, provider_id, channel)
    WHERE provider_id IS NOT NULL;
DROP INDEX event_waiting;
CREATE INDEX event_waiting ON event (seq, settled_at) WHERE settled_at IS NULL;
DROP INDEX receipt_unmatched;
CREATE INDEX receipt_unmatched ON receipt (provider_id, channel, message_id, dropped_at)
    WHERE message_id IS NULL AND dropped_at IS NULL;
CREATE INDEX malformed_open ON malformed (dropped_at) WHERE dropped_at IS NULL;
ALTER TABLE past RENAME TO past_as_json;
CREATE TABLE past (id INTEGER PRIMARY KEY, dequeued_at INTEGER, at INTEGER, status TEXT, rest TEXT);
INSERT INTO past SELECT {COMPACT} FROM past_as_json;
DROP TABLE past_as_json;
""",  # noqa: S608  # constants
    3: """
ALTER TABLE message ADD COLUMN started_at INTEGER;
ALTER TABLE message ADD COLUMN accepted_at INTEGER;
ALTER TABLE message ADD COLUMN sends INTEGER NOT NULL DEFAULT 0;
ALTER TABLE message ADD COLUMN provider_id TEXT;
ALTER TABLE message ADD COLUMN reason TEXT;
UPDATE message SET started_at = latest.started_at, sends = latest.sends,
    accepted_at = iif(verdict = 'accepted', latest.ended_at, NULL),
    provider_id = iif(verdict = 'accepted', latest.provider_id, NULL),
    reason = iif(verdict = 'accepted', latest.reason, NULL)
    FROM attempt AS latest WHERE latest.message_id = id AND latest.number = attempts;
CREATE TABLE unaccepted (
    message_id INTEGER NOT NULL, number INTEGER NOT NULL,
    channel TEXT NOT NULL,
    sends INTEGER NOT NULL,
    started_at INTEGER NOT NULL, ended_at INTEGER,
    verdict TEXT, provider_id TEXT, reason TEXT,
    PRIMARY KEY (message_id, number)
) WITHOUT ROWID;
INSERT INTO unaccepted
    SELECT message_id, number, channel, sends, started_at, ended_at, verdict, provider_id, reason FROM attempt
    WHERE NOT EXISTS (SELECT 1 FROM message
        WHERE id = message_id AND attempts = number AND (state = 4 OR accepted_at IS NOT NULL));
DROP TABLE attempt;
CREATE INDEX message_provider ON message (started_at / 14400000000, provider_id, lane)
    WHERE provider_id IS NOT NULL;
CREATE VIEW attempt AS
    SELECT message_id, number, channel, sends, started_at, ended_at, verdict, provider_id, reason
    FROM unaccepted
    UNION ALL SELECT id, attempts, lane, sends, started_at, accepted_at,
        iif(accepted_at IS NULL, NULL, 'accepted'), provider_id, reason
    FROM message WHERE state = 4 OR accepted_at IS NOT NULL;
DROP INDEX event_refused;
ALTER TABLE event RENAME TO event_by_message;
UPDATE meta SET value = max(CAST(value AS INTEGER),
    (SELECT coalesce(max(seq), 0) FROM event_by_message WHERE settled_at IS NOT NULL))
    WHERE key = 'settled_seq';
CREATE TABLE event (
    seq INTEGER PRIMARY KEY,
    message_id INTEGER NOT NULL,
    status TEXT NOT NULL,
    body TEXT NOT NULL,
    refused_at INTEGER, refused TEXT,
    dropped_at INTEGER,
    first_seq INTEGER
);
CREATE TABLE post (last INTEGER PRIMARY KEY, first INTEGER NOT NULL, at INTEGER NOT NULL);
WITH higher (by) AS (
    SELECT max(0, 1 + CAST(value AS INTEGER) - coalesce(
        (SELECT min(seq) FROM event_by_message WHERE settled_at IS NULL), 1 + CAST(value AS INTEGER)))
    FROM meta WHERE key = 'settled_seq'
)
INSERT INTO event
    SELECT seq, message_id, status, body, iif(refused IS NULL, NULL, settled_at), refused, dropped_at, NULL
        FROM event_by_message WHERE settled_at IS NOT NULL
    UNION ALL SELECT seq + by, message_id, status, body, NULL, refused, dropped_at, iif(by, seq, NULL)
        FROM event_by_message, higher WHERE settled_at IS NULL
    ORDER BY 1;
INSERT INTO post
    SELECT last, 1 + lag(last, 1, 0) OVER (ORDER BY last), at FROM (
        SELECT seq AS last, settled_at AS at, lead(settled_at) OVER (ORDER BY seq) AS next
        FROM event_by_message WHERE settled_at IS NOT NULL AND refused IS NULL
    ) WHERE at IS NOT next;
DROP TABLE event_by_message;
CREATE INDEX event_message ON event (message_id);
CREATE INDEX event_refused ON event (seq) WHERE refused IS NOT NULL AND dropped_at IS NULL;
""",
}
"""By format: the statements that lead to the next one. They never change once a release has them."""


def upgrade(db: sqlite3.Connection, version: int, target: int) -> None:
    """Bring a journal from one format to another, in one transaction."""
    statements = "".join(STEPS[each] for each in range(version, target))
    try:
        db.executescript(f"BEGIN IMMEDIATE; {statements} PRAGMA user_version = {target}; COMMIT;")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
