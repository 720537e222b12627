"""The journal's tables in PostgreSQL, their partitions, and the database's format.

What grows with the messages is partitioned by the day of their take: `message`, `unaccepted`,
`event` and `receipt`. All rows of a message are in partitions of one day, which `seen` names; a day that is
over is dropped as a whole. No index holds a state, so that the steps of a message stay in their page: what
waits, and what awaits a receipt, has a row of its own in a small table meanwhile.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Sequence
from datetime import date

import psycopg

from deliveryd.errors import JournalUnusable
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.move_marks import unfinished_move
from deliveryd.journal.read_transaction import JournalAbsent
from deliveryd.journal.schema import MOVED_TO, was_moved

FORMAT = 1
"""The format that this program writes."""

WRITTEN_SINCE = 1
"""The format of the oldest program that may still write while this format is in use."""

UPGRADES: Sequence[str] = ()
"""SQL from each format to the next: the first entry turns format 1 into format 2. Only ever additive."""

DAY = 86_400_000_000
"""Microseconds."""

LOG_BITS = 40
"""Bits of an event's number within the log of its worker; those above are the worker's own number."""

PARTITIONED = ("message", "unaccepted", "event", "receipt")
"""What is partitioned by day; the message first, since the others belong to it."""

_RECORDED = (
    "worker WHERE id > 0",
    "seen",
    "unmatched",
    "malformed",
    "unread",
    "stopped",
    "pause",
    "decision",
    "beginning",
)
_LOCK = 0x64_6C_76_64  # "dlvd": of everything that changes the schema or who works

TABLES = """
CREATE TABLE meta (key text COLLATE "C" PRIMARY KEY, value text NOT NULL) WITH (fillfactor = 50);

CREATE TABLE worker (                     -- one row for each start of a worker: its lease, log and account
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,                   -- for people; nothing is decided by it
    began_at bigint NOT NULL,
    format integer NOT NULL,              -- that its program writes
    lease bigint NOT NULL,                -- microseconds
    commits bigint NOT NULL DEFAULT 0,    -- raised by each of its commits: fence, heartbeat, and proof
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp(),    -- for people, and for their orders
    ended text,                           -- NULL: live; 'released' by itself; 'fenced' by another one;
                                          -- 'left': what an adopter left to those who have its providers
    holder bigint,                        -- who has its messages and reports its events; NULL: nobody
    settled bigint NOT NULL DEFAULT 0,    -- its events up to this number are accepted or refused
    taken bigint NOT NULL DEFAULT 0, pruned bigint NOT NULL DEFAULT 0, forgotten bigint NOT NULL DEFAULT 0,
    providers text[] COLLATE "C" NOT NULL DEFAULT '{}',
    pauses bigint NOT NULL DEFAULT 0      -- the version of the pauses that it goes by
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX worker_holder ON worker (holder) WHERE holder IS NOT NULL;
INSERT INTO worker (id, name, began_at, format, lease, ended) OVERRIDING SYSTEM VALUE
    VALUES (0, '', 0, 0, 0, 'folded');    -- the sums of all of whom nothing else is left

CREATE TABLE version (                    -- what workers watch; raised by whoever changes it
    kind text COLLATE "C" PRIMARY KEY, number bigint NOT NULL
);
INSERT INTO version VALUES ('pauses', 0), ('stops', 0), ('down', 0);

CREATE TABLE seen (                       -- every id that was ever taken, and the day of its partition
    id bigint PRIMARY KEY, day integer NOT NULL
);
CREATE TABLE retired (                    -- one row: messages up to here are pruned, by day and id
    day integer NOT NULL, id bigint NOT NULL
) WITH (fillfactor = 20);
INSERT INTO retired VALUES (0, -9223372036854775808);

CREATE TABLE message (
    id bigint NOT NULL, day integer NOT NULL,
    settings_id bigint, customer_id bigint,   -- NULL: the queue's element was malformed
    taken_at bigint NOT NULL,
    owner bigint,                         -- TAKEN, READY, SENDING: the worker; 0: in doubt; NULL: all others
    log bigint,                           -- of its latest event: the log, or -log where that is in an inbox
    started_at bigint,                    -- of the try in progress, or of the one that was accepted
    ended_at bigint,                      -- only in an end state
    accepted_at bigint,
    state smallint NOT NULL,
    key integer NOT NULL DEFAULT 1, number integer NOT NULL DEFAULT 0, tries integer NOT NULL DEFAULT 0,
    beginning integer NOT NULL DEFAULT 1,
    doubt boolean NOT NULL DEFAULT false,
    provider text COLLATE "C" NOT NULL DEFAULT '',
    provider_id text COLLATE "C", reason text, digest bytea, sent_by text COLLATE "C",
    spent text NOT NULL DEFAULT '[]',
    content text, variables text,
    PRIMARY KEY (id, day)
) PARTITION BY LIST (day);
CREATE INDEX message_owner ON message (owner) WHERE owner IS NOT NULL;
CREATE INDEX message_provider_id ON message (provider_id) WHERE provider_id IS NOT NULL;
CREATE INDEX message_ended ON message USING brin (ended_at);

CREATE TABLE waiting (                    -- messages in WAITING
    id bigint PRIMARY KEY,
    provider text COLLATE "C" NOT NULL,   -- as in message
    doubt boolean NOT NULL,
    due_at bigint NOT NULL,
    waits_for text COLLATE "C"            -- what wakes it before due_at (see waits.py)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX waiting_due ON waiting (provider, due_at, id) WHERE waits_for IS NULL;
CREATE INDEX waiting_for ON waiting (waits_for, due_at) WHERE waits_for IS NOT NULL;
CREATE INDEX waiting_until ON waiting (due_at) WHERE waits_for IS NOT NULL;

CREATE TABLE awaited (                    -- messages in SENT whose receipt may still send them on
    id bigint PRIMARY KEY,
    provider text COLLATE "C" NOT NULL,   -- as in message
    accepted_at bigint NOT NULL,
    confirm_by bigint,                    -- the receipt deadline, in the provider's own listening time
    confirm_within bigint,                -- the length of that deadline
    failed_next boolean NOT NULL          -- a reported failure leads to the next channel
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX awaited_by ON awaited (provider, confirm_by) WHERE confirm_by IS NOT NULL;

CREATE TABLE unaccepted (                 -- tries that failed, are in doubt, or weren't confirmed in time
    message_id bigint NOT NULL, day integer NOT NULL,
    key integer NOT NULL, number integer NOT NULL,
    provider text COLLATE "C" NOT NULL, beginning integer NOT NULL,
    started_at bigint NOT NULL, ended_at bigint,
    verdict text, provider_id text COLLATE "C", reason text, words text,
    PRIMARY KEY (message_id, key, number, day)
) PARTITION BY LIST (day);
CREATE INDEX unaccepted_provider_id ON unaccepted (provider_id) WHERE provider_id IS NOT NULL;

CREATE TABLE event (                      -- the outbox: events behind their log's watermark wait
    seq bigint NOT NULL,                  -- worker << 40 | number within its log
    day integer NOT NULL,
    first_seq bigint,                     -- seq before the event was moved to the end; NULL: it never was
    message_id bigint NOT NULL,
    refused_at bigint, dropped_at bigint, refusals integer,
    status text COLLATE "C" NOT NULL, body text COLLATE "C" NOT NULL, refused text,
    PRIMARY KEY (seq, day)
) PARTITION BY LIST (day);
CREATE INDEX event_message ON event (message_id);
CREATE INDEX event_refused ON event (seq) WHERE refused_at IS NOT NULL AND dropped_at IS NULL;

CREATE TABLE inbox (                      -- events for logs that other workers write
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    log bigint NOT NULL, message_id bigint NOT NULL,
    moved bigint,                         -- an event that is to be reported once more; NULL: a new one
    status text COLLATE "C", body text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX inbox_log ON inbox (log, seq);
CREATE INDEX inbox_message ON inbox (message_id);

CREATE TABLE post (                       -- an accepted POST /events: which events of one log, and when
    last bigint PRIMARY KEY, first bigint NOT NULL, at bigint NOT NULL
);

CREATE SEQUENCE receipt_seq;
CREATE TABLE receipt (                    -- matched ones
    seq bigint NOT NULL, day integer NOT NULL,
    message_id bigint NOT NULL,
    reported_at bigint NOT NULL, received_at bigint NOT NULL, delivered boolean NOT NULL,
    provider text COLLATE "C" NOT NULL, provider_id text COLLATE "C" NOT NULL, status text NOT NULL,
    reference text COLLATE "C",
    PRIMARY KEY (message_id, seq, day)
) PARTITION BY LIST (day);

CREATE TABLE unmatched (                  -- receipts that are kept until an attempt fits them
    seq bigint PRIMARY KEY DEFAULT nextval('receipt_seq'),
    reported_at bigint NOT NULL, received_at bigint NOT NULL, delivered boolean NOT NULL,
    provider text COLLATE "C" NOT NULL, provider_id text COLLATE "C" NOT NULL, status text NOT NULL,
    reference text COLLATE "C",
    named bigint,                         -- the message that the reference names
    dropped_at bigint,
    looks integer DEFAULT 0,              -- how often a sweep tried to match it; NULL: that is over
    horizon xid8                          -- transactions with this number or a higher one see it
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX unmatched_unswept ON unmatched (looks, seq) WHERE looks IS NOT NULL AND dropped_at IS NULL;
CREATE INDEX unmatched_provider_id ON unmatched (provider_id, provider, reference);
CREATE INDEX unmatched_named ON unmatched (named) WHERE named IS NOT NULL;
CREATE INDEX unmatched_received ON unmatched (received_at);

CREATE TABLE malformed (                  -- elements of the queue that can't be read as a message
    digest text COLLATE "C" PRIMARY KEY,  -- SHA-256 of raw
    message_id bigint,                    -- NULL: the element has no usable id
    first_at bigint NOT NULL, last_at bigint NOT NULL, times integer NOT NULL, dropped_at bigint,
    reason text NOT NULL, raw text NOT NULL
);
CREATE INDEX malformed_last ON malformed (last_at);
CREATE INDEX malformed_message ON malformed (message_id) WHERE message_id IS NOT NULL;

CREATE TABLE unread (                     -- reports in providers' requests that can't be read
    digest text COLLATE "C" PRIMARY KEY,  -- SHA-256 of provider and raw
    first_at bigint NOT NULL, last_at bigint NOT NULL, times integer NOT NULL, dropped_at bigint,
    provider text COLLATE "C" NOT NULL, reason text NOT NULL, raw text NOT NULL
);
CREATE INDEX unread_last ON unread (last_at);

CREATE TABLE used_token (                 -- of signatures that cover a token and not the report
    token bytea PRIMARY KEY, body bytea NOT NULL, until bigint NOT NULL
);
CREATE INDEX used_token_until ON used_token (until);

CREATE TABLE stopped (                    -- recipients who can't be reached on a channel any more
    channel text COLLATE "C" NOT NULL, digest bytea NOT NULL,
    at bigint NOT NULL, lifted_at bigint, reason text, source text NOT NULL,
    change bigint NOT NULL,               -- the number of its latest change, by the version of all
    PRIMARY KEY (channel, digest)
);
CREATE INDEX stopped_lifted ON stopped (lifted_at) WHERE lifted_at IS NOT NULL;
CREATE INDEX stopped_change ON stopped (change);

CREATE TABLE pause (                      -- what operators paused
    kind text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL,
    since bigint NOT NULL, until bigint, "user" text, caller text, reason text,
    PRIMARY KEY (kind, key)
);

CREATE TABLE decision (                   -- operators' orders that were carried out
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id bigint, at bigint NOT NULL, verb text NOT NULL, kind text NOT NULL,
    key text COLLATE "C" NOT NULL, "user" text, caller text, reason text
);
CREATE INDEX decision_message ON decision (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX decision_other ON decision (at) WHERE message_id IS NULL;

CREATE TABLE tombstone (                  -- pruned and erased messages
    id bigint PRIMARY KEY,
    dequeued_at bigint, at bigint, status text, rest text
);
CREATE TABLE beginning (                  -- of pruned and forgotten messages; never deleted
    id bigint PRIMARY KEY, count integer NOT NULL, doubt boolean NOT NULL DEFAULT false
);

CREATE TABLE provider (                   -- of those with receipts: see deadlines.py and overdue.py
    name text COLLATE "C" PRIMARY KEY,
    reported_at bigint NOT NULL DEFAULT 0, passed bigint NOT NULL DEFAULT 0,
    silent boolean NOT NULL DEFAULT false, renewing bigint, overdue_until bigint NOT NULL DEFAULT 0,
    heard bigint,                         -- the listening time when a worker that has it listened last
    unheard bigint NOT NULL DEFAULT 0     -- how much of it no such worker listened; its own is less by that
) WITH (fillfactor = 50);

CREATE TABLE given (                      -- messages that an order gave to the worker that reports their
    id bigint PRIMARY KEY,                -- `dequeued`, until that one knows them
    log bigint NOT NULL                   -- the number of its log
);
CREATE TABLE former (                     -- names of workers whose rows are deleted, for people
    id bigint PRIMARY KEY, name text NOT NULL, ended_at bigint NOT NULL
);
CREATE INDEX former_ended ON former (ended_at);
CREATE TABLE had (                        -- providers of ended workers whose rows are deleted, and until when
    provider text COLLATE "C" PRIMARY KEY, had_at timestamptz NOT NULL
);
CREATE TABLE pace (                       -- of those with a rate: see pacing.py; instants of the database
    provider text COLLATE "C" PRIMARY KEY, next_at bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE TABLE loss (                       -- workers that noticed lost commits: see halt.py
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    noticed_at bigint NOT NULL, worker bigint NOT NULL, name text NOT NULL,
    acknowledged bigint NOT NULL, found bigint, accepted_at bigint
);
CREATE TABLE probe (                      -- whose turn to probe is taken, and until when
    provider text COLLATE "C" PRIMARY KEY, since bigint NOT NULL, until bigint NOT NULL
);
"""

_STORAGE = {
    "message": "fillfactor = 50, toast_tuple_target = 4080",
    "event": "",
    "receipt": "",
    "unaccepted": "",
}
"""Storage of a day's partitions: three later versions of a message's row fit into its page."""


_OF_FORMAT = ["format", "written_since", "moved", MOVED_TO]
_OTHER_TABLE = """
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p', 'f')
    AND c.relname <> 'unfinished_move' AND NOT EXISTS (SELECT 1 FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY c.relname LIMIT 1
"""
_NAMES: Sequence[str] = re.findall(r"^CREATE TABLE (\w+)", TABLES, re.MULTILINE)


def prepare_schema(db: Db) -> None:
    """Create the tables in an empty database, or upgrade an earlier format. Raises JournalUnusable."""
    with db.transaction():
        lock_schema(db)
        _prepare(db, writable_format(db))


def prepare_target(db: Db) -> None:
    """Like `prepare_schema`, also where a move into this database broke off."""
    with db.transaction():
        lock_schema(db)
        _prepare(db, _format(db))


def _prepare(db: Db, form: int | None) -> None:
    if form is None:
        _create(db)
    elif form < FORMAT:
        _upgrade(db, form)


def writable_format(db: Db) -> int | None:
    """The format of the journal in a database; None: there is none yet.

    Raises JournalUnusable when this program can't write it.
    """
    if unfinished_move(db) is not None:
        raise JournalUnusable(
            "a move into this database broke off: run deliveryd journal move once more, which finishes it"
        )
    return _format(db)


def _format(db: Db) -> int | None:
    if not _is_there(db, "meta"):
        other = _other_table(db)
        if other is None:
            return None
        if not _is_there(db, "meta"):  # or a worker that starts has just made them all
            raise _not_ours(other)
    try:
        rows = db.execute("SELECT key, value FROM meta WHERE key = ANY(%s)", (_OF_FORMAT,))
    except psycopg.errors.UndefinedColumn:
        raise _not_ours("meta") from None
    found: dict[str, str] = dict(rows.fetchall())
    if "moved" in found:
        raise JournalUnusable(was_moved(found.get(MOVED_TO)))
    if "format" not in found:
        raise JournalUnusable(
            "the database holds tables, but no journal of deliveryd: name an empty one in journal.url"
        )
    form, since = int(found["format"]), int(found["written_since"])
    if since > FORMAT:
        raise JournalUnusable(
            f"the journal has format {form}, which programs of format {since} and later may write,"
            f" and this deliveryd writes format {FORMAT}: run a newer one"
        )
    return form


def _other_table(db: Db) -> str | None:
    """A table of somebody else in a database without a journal; tables of extensions don't count."""
    if (known := next((name for name in _NAMES if _is_there(db, name)), None)) is not None:
        return known
    row = db.execute(_OTHER_TABLE).fetchone()
    return None if row is None else str(row[0])


def _is_there(db: Db, table: str) -> bool:
    return db.execute(f"SELECT to_regclass('{table}')").fetchone() != (None,)


def _not_ours(table: str) -> JournalUnusable:
    return JournalUnusable(
        f"the database holds tables that aren't deliveryd's, as {table}: give it a database of its own"
    )


def _create(db: Db) -> None:
    db.execute(TABLES, prepare=False)
    values = {
        "format": FORMAT,
        "written_since": WRITTEN_SINCE,
        "namespace": uuid.uuid4().hex[:12],
        "stop_key": secrets.token_hex(32),
    }
    for key, value in values.items():
        db.execute("INSERT INTO meta VALUES (%s, %s)", (key, str(value)))


def _upgrade(db: Db, form: int) -> None:
    """Bring the tables to this format; programs of earlier ones that still run aren't disturbed."""
    for statements in UPGRADES[form - 1 :]:
        db.execute(statements, prepare=False)
    db.execute("UPDATE meta SET value = %s WHERE key = 'format'", (str(FORMAT),))


def first_filled(db: Db) -> str | None:
    """The name of a table in which a journal has left something; None: nothing was ever recorded."""
    for table in _RECORDED:
        if db.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone() == (True,):
            return table.partition(" ")[0]
    return None


def lock_schema(db: Db) -> None:
    """Until the transaction ends, nobody else changes the schema or begins to work."""
    db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))


def hold_schema(db: Db) -> None:
    """Like `lock_schema`, but until the connection is closed: a snapshot that is taken next is behind it."""
    db.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))


def check_movable(db: Db) -> None:
    """Raise JournalUnusable when this program can't copy all of a journal, or it was moved by now."""
    form = writable_format(db)
    if form is not None and form > FORMAT:
        raise JournalUnusable(
            f"the journal has format {form}, and this deliveryd copies format {FORMAT}: move it with the"
            " release that wrote it"
        )


def check_readable(db: Db, place: str) -> None:
    """Raise JournalAbsent when the database holds no journal, JournalUnusable for one of another format."""
    form = writable_format(db)
    if form is None:
        raise JournalAbsent(f"there is no journal in {place}: deliveryd hasn't run with it yet")
    if form < FORMAT:
        raise JournalUnusable(
            f"the journal has format {form}, and this deliveryd reads format {FORMAT}: start it, which"
            " upgrades the journal, or use the commands of the release that runs"
        )


def day_of(at: int) -> int:
    """The day of an instant, counted since 1970."""
    return max(at // DAY, 1)


def partition_of(table: str, day: int) -> str:
    """The name of a table's partition of a day."""
    return f"{table}_{date.fromordinal(date(1970, 1, 1).toordinal() + day):%Y%m%d}"


def days_there(db: Db) -> list[int]:
    """The days that have partitions, the oldest first."""
    rows = db.execute(
        "SELECT (regexp_match(pg_get_expr(c.relpartbound, c.oid), '\\d+'))[1]::int FROM pg_inherits i"
        " JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'message'::regclass ORDER BY 1"
    )
    return [day for (day,) in rows if day is not None]  # NULL: it is being dropped


def make_day(db: Db, day: int) -> None:
    """Make the partitions of a day unless they are there.

    They are attached, since a partition that is created in its place would lock out all readers.
    """
    if day in days_there(db):
        return
    with db.transaction():
        lock_schema(db)
        if day in days_there(db):
            return
        for table in PARTITIONED:
            name = partition_of(table, day)
            storage = f" WITH ({_STORAGE[table]})" if _STORAGE[table] else ""
            columns = f"LIKE {table} INCLUDING ALL, CONSTRAINT day CHECK (day = {day})"
            db.execute(f"CREATE TABLE {name} ({columns}){storage}")
            db.execute(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES IN ({day})")


def lock_partition(db: Db, table: str, day: int) -> None:
    """Keep everybody else from a table's partition of a day, if it is there, until the transaction ends."""
    name = partition_of(table, day)
    if db.execute("SELECT to_regclass(%s)", (name,)).fetchone() != (None,):
        db.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")


def drop_partition(db: Db, table: str, day: int) -> None:
    """Drop a table's partition of a day, if it is there, in the transaction that is open."""
    db.execute(f"DROP TABLE IF EXISTS {partition_of(table, day)}")
