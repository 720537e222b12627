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
