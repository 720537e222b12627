"""Brings journals of earlier formats to the present one, when the worker opens them."""

from __future__ import annotations

import sqlite3

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
