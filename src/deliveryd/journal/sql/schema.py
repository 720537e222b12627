"""The journal's tables, in the words of a file; a database has the same."""

from __future__ import annotations

from deliveryd.states import State

HELD_INDEX = """CREATE INDEX message_held ON message (waits_for, settings_id, due_at, id)
    WHERE waits_for IS NOT NULL AND due_at IS NOT NULL"""
"""Of what waits for something, by settings ids, which take turns. Journals of 0.1.0 have another one."""

# Columns that may be large come last, so that reading the others needs no overflow pages.
# A partial index includes the columns of its condition: without them SQLite reads each row, even to count.
TABLES = f"""
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    settings_id INTEGER, customer_id INTEGER,  -- NULL: the queue's element was malformed
    state INTEGER NOT NULL,
    taken_at INTEGER NOT NULL,
    due_at INTEGER,                       -- only in WAITING: when it continues
    waits_for TEXT,                       -- only in WAITING: what wakes it before due_at (see waits.py)
    ended_at INTEGER,                     -- only in an end state; of a delivered one: when it was sent
    provider TEXT NOT NULL DEFAULT '',    -- the provider it is bound to; '': none yet
    stay INTEGER NOT NULL DEFAULT 1,      -- number of its stay at a provider
    generation INTEGER NOT NULL DEFAULT 1, -- how often it began; part of its idempotency keys
    stay_tries INTEGER NOT NULL DEFAULT 0, -- tries of this stay
    counted_tries INTEGER NOT NULL DEFAULT 0, -- tries at this provider that count towards retry.attempts
    doubt INTEGER NOT NULL DEFAULT 0,     -- 1: a try under this key has an unknown outcome
    started_at INTEGER,                   -- of the try in progress, or of the one that was accepted
    accepted_at INTEGER, provider_id TEXT, reason TEXT,  -- of the one that was accepted
    digest BLOB,                          -- identifies the content of the latest try
    sent_by TEXT,                         -- the provider that accepted it before, without confirming in time
    confirm_by INTEGER,                   -- only in SENT: its receipt deadline, in listening time
    confirm_within INTEGER,               -- only in SENT: the length of that deadline
    failed_next INTEGER,                  -- only in SENT: 1: a reported failure leads to the next channel
    waits_at TEXT GENERATED ALWAYS AS (   -- the provider where it waits for its time
        iif(state = {State.WAITING:d} AND waits_for IS NULL, provider, NULL)) VIRTUAL,
    confirms_at TEXT GENERATED ALWAYS AS (iif(confirm_by IS NULL, NULL, provider)) VIRTUAL,
    spent TEXT NOT NULL DEFAULT '[]',     -- JSON: providers that failed for good (see `model.Spent`)
    content TEXT,                         -- JSON: what a try under this key sent that may have arrived
    variables TEXT                        -- JSON; NULL: malformed, or emptied after the message was sent
);
CREATE INDEX message_moving ON message (id) WHERE ended_at IS NULL AND due_at IS NULL;
CREATE INDEX message_waiting ON message (waits_at, due_at) WHERE waits_at IS NOT NULL;
{HELD_INDEX};
CREATE INDEX message_held_until ON message (due_at, waits_for)
    WHERE waits_for IS NOT NULL AND due_at IS NOT NULL;
CREATE INDEX message_ended ON message (ended_at, state) WHERE ended_at IS NOT NULL;
CREATE INDEX message_provider ON message ((started_at / 14400000000), provider_id, provider)
    WHERE provider_id IS NOT NULL;        -- by periods of four hours (see receipt_match.py)
CREATE INDEX message_to_confirm ON message (confirms_at, confirm_by) WHERE confirms_at IS NOT NULL;

CREATE TABLE unaccepted (                 -- tries that failed, are in doubt, or weren't confirmed in time
    message_id INTEGER NOT NULL, stay INTEGER NOT NULL, stay_tries INTEGER NOT NULL,
    provider TEXT NOT NULL, generation INTEGER NOT NULL,
    started_at INTEGER NOT NULL, ended_at INTEGER,
    verdict TEXT, provider_id TEXT, reason TEXT,
    words TEXT,                           -- what the provider said, in its own words
    PRIMARY KEY (message_id, stay, stay_tries)
) WITHOUT ROWID;
CREATE INDEX unaccepted_provider ON unaccepted (provider_id, provider) WHERE provider_id IS NOT NULL;

-- All tries. One that is in progress or was accepted is part of its message's row, to save a row of its own;
-- one that was in doubt and turned out to be accepted is listed twice.
CREATE VIEW attempt AS
    SELECT message_id, stay, stay_tries, provider, generation, started_at, ended_at, verdict, provider_id,
        reason, words
    FROM unaccepted
    UNION ALL SELECT id, stay, stay_tries, provider, generation, started_at, accepted_at,
        iif(accepted_at IS NULL, NULL, 'accepted'), provider_id, reason, NULL
    FROM message WHERE state = {State.SENDING:d} OR accepted_at IS NOT NULL;

CREATE TABLE event (                      -- the outbox: events with seq > log.settled are unsettled
    seq INTEGER PRIMARY KEY,              -- the order in which events are reported
    first_seq INTEGER,                    -- seq before the event was moved to the end; NULL: it never was
    message_id INTEGER NOT NULL,
    status TEXT NOT NULL,
    body TEXT NOT NULL,                   -- the JSON that is posted to the service
    refused_at INTEGER, refused TEXT,     -- when and why the service refused it
    refusals INTEGER,                     -- how often the service refused it
    dropped_at INTEGER                    -- when an operator dropped it
);
CREATE INDEX event_message ON event (message_id);
CREATE INDEX event_refused ON event (seq) WHERE refused IS NOT NULL AND dropped_at IS NULL;

CREATE TABLE post (                       -- an accepted POST /events: which events, and when
    last INTEGER PRIMARY KEY, first INTEGER NOT NULL,
    at INTEGER NOT NULL
);

CREATE TABLE malformed (                  -- elements of the queue that can't be read as a message
    digest TEXT PRIMARY KEY,              -- SHA-256 of raw
    message_id INTEGER,                   -- NULL: the element has no usable id
    raw TEXT NOT NULL, reason TEXT NOT NULL,
    first_at INTEGER NOT NULL, last_at INTEGER NOT NULL, times INTEGER NOT NULL DEFAULT 1,
    dropped_at INTEGER
) WITHOUT ROWID;
CREATE INDEX malformed_last ON malformed (last_at);
CREATE INDEX malformed_open ON malformed (dropped_at) WHERE dropped_at IS NULL;
CREATE INDEX malformed_message ON malformed (message_id) WHERE message_id IS NOT NULL;

CREATE TABLE receipt (
    seq INTEGER PRIMARY KEY,
    message_id INTEGER,                   -- NULL: unmatched
    provider TEXT NOT NULL, provider_id TEXT NOT NULL,
    reference TEXT,                       -- a message id or an idempotency key that the provider echoed
    delivered INTEGER NOT NULL, status TEXT NOT NULL,
    reported_at INTEGER NOT NULL, received_at INTEGER NOT NULL,
    dropped_at INTEGER
);
CREATE INDEX receipt_unmatched ON receipt (provider_id, provider, message_id, dropped_at)
    WHERE message_id IS NULL AND dropped_at IS NULL;
CREATE INDEX receipt_unmatched_reference ON receipt (reference, provider)
    WHERE message_id IS NULL AND dropped_at IS NULL AND reference IS NOT NULL;
CREATE INDEX receipt_unmatched_since ON receipt (received_at) WHERE message_id IS NULL;
CREATE INDEX receipt_message ON receipt (message_id) WHERE message_id IS NOT NULL;

CREATE TABLE unread (                     -- reports in providers' requests that can't be read
    digest TEXT PRIMARY KEY,              -- SHA-256 of provider and raw
    provider TEXT NOT NULL, raw TEXT NOT NULL, reason TEXT NOT NULL,
    first_at INTEGER NOT NULL, last_at INTEGER NOT NULL, times INTEGER NOT NULL DEFAULT 1,
    dropped_at INTEGER
) WITHOUT ROWID;
CREATE INDEX unread_last ON unread (last_at);

CREATE TABLE used_token (                 -- of signatures that cover a token and not the report
    token BLOB PRIMARY KEY, body BLOB NOT NULL,  -- digests; the report that it was used for
    until INTEGER NOT NULL                -- when the signature is too old to be accepted
) WITHOUT ROWID;
CREATE INDEX used_token_until ON used_token (until);

CREATE TABLE budget (                     -- what was counted of budgets, by period (see counting.py)
    name TEXT NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL,
    messages INTEGER NOT NULL, parts INTEGER NOT NULL,
    changes INTEGER NOT NULL,             -- how often that changed
    PRIMARY KEY (name, since, until)
) WITHOUT ROWID;
CREATE INDEX budget_until ON budget (until);

CREATE TABLE capped (                     -- what customers got that caps count
    customer TEXT PRIMARY KEY,            -- a digest of the id, with the key meta.stop_key
    got TEXT NOT NULL DEFAULT '[]',       -- JSON: at, settings id, message id, tries of each message
    until INTEGER NOT NULL                -- when none of it counts any more
) WITHOUT ROWID;
CREATE INDEX capped_until ON capped (until);

CREATE TABLE stopped (                    -- recipients who can't be reached on a channel any more
    channel TEXT NOT NULL,
    digest BLOB NOT NULL,                 -- of the address, with the key meta.stop_key
    at INTEGER NOT NULL,
    lifted_at INTEGER,                    -- NULL: in force
    reason TEXT, source TEXT NOT NULL,    -- source: 'answer', 'receipt' or 'operator'
    PRIMARY KEY (channel, digest)
) WITHOUT ROWID;
CREATE INDEX stopped_lifted ON stopped (lifted_at) WHERE lifted_at IS NOT NULL;

CREATE TABLE pause (                      -- what operators paused (see pauses.py)
    kind TEXT NOT NULL, key TEXT NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER,                        -- NULL: until an operator resumes it
    "user" TEXT, caller TEXT, reason TEXT,  -- as in decision
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;

CREATE TABLE decision (                   -- operators' orders that were carried out
    seq INTEGER PRIMARY KEY,
    message_id INTEGER,                   -- NULL: about no message, or about one that was erased
    at INTEGER NOT NULL,
    verb TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,
    "user" TEXT,                          -- as the system reports it
    caller TEXT,                          -- as the user claims
    reason TEXT                           -- why, as the operator wrote it
);
CREATE INDEX decision_message ON decision (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX decision_other ON decision (at) WHERE message_id IS NULL;

CREATE TABLE tombstone (                  -- pruned and erased messages
    id INTEGER PRIMARY KEY,
    dequeued_at INTEGER,
    at INTEGER, status TEXT, rest TEXT    -- the latest event; rest: its other fields as JSON, if any
);

CREATE TABLE generation (                 -- of deleted messages (see deletion.py); never deleted
    id INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,               -- how often it began
    doubt INTEGER NOT NULL DEFAULT 0      -- 1: it failed, and may have arrived
);

CREATE TABLE provider (                   -- of those with receipts: see deadlines.py
    name TEXT PRIMARY KEY,
    reported_at INTEGER NOT NULL DEFAULT 0,  -- when a receipt of a message of ours was recorded last
    passed INTEGER NOT NULL DEFAULT 0,    -- deadlines that passed since without a report
    silent INTEGER NOT NULL DEFAULT 0,    -- 1: its deadlines stand still
    renewing INTEGER,                     -- the listening time from which its deadlines begin anew
    overdue_until INTEGER NOT NULL DEFAULT 0  -- messages sent before were counted if they are overdue
) WITHOUT ROWID;

CREATE TABLE log (                        -- one row: what this log counts
    number INTEGER PRIMARY KEY,
    settled INTEGER NOT NULL DEFAULT 0,   -- its events up to this number are accepted or refused
    taken INTEGER NOT NULL DEFAULT 0,     -- messages that were ever taken
    pruned INTEGER NOT NULL DEFAULT 0,    -- those of which only a tombstone is left
    forgotten INTEGER NOT NULL DEFAULT 0, -- those that an operator had forgotten
    lost INTEGER NOT NULL DEFAULT 0,      -- batches that may be lost
    lost_at INTEGER,                      -- when the last of them was requested
    listened INTEGER NOT NULL DEFAULT 0,  -- the listening time, in microseconds (see deadlines.py)
    latest_at INTEGER NOT NULL DEFAULT 0  -- no event has a later instant, since the clock was put back
);
INSERT INTO log (number) VALUES (0);

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""  # noqa: S608  # constants

KEEP_VALUE = """
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""
"""Keeps one of the journal's own values."""

KNOW_PROVIDER = "INSERT INTO provider (name) VALUES (?) ON CONFLICT DO NOTHING"
"""Makes the row of a provider, unless it is there."""

MOVED_BY = "moved_by"
"""The key of the token of a file's latest move: a move that broke off is finished by it."""

MOVED_TO = "moved_to"
"""The key of where a file's latest move led, and when, for people."""


def was_moved(where: str | None) -> str:
    """Record for people that a journal was moved; `where`: to which place, and when, if that was recorded."""
    if where:
        return f"the journal was moved to another place, to {where}: name that in journal.url"
    return (
        "the journal was moved to another place: name that in journal.url, or see: deliveryd journal reopen"
    )
