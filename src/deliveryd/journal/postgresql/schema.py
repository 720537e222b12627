"""The journal's tables in PostgreSQL, and the database's format.

They are the tables of a file, in the schema `main`, with a column `log` where rows belong to a log. In the
schema `own` each of these has a view of the rows of the log that is worked on: what is written for a file is
right there, too. Some tables more are about the workers.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Iterator

import psycopg

from deliveryd.errors import JournalUnusable
from deliveryd.journal.log import LOG_BITS
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.sql import schema
from deliveryd.journal.sql.schema import MOVED_BY, MOVED_TO, was_moved
from deliveryd.journal.sqlite.opening import JournalAbsent

_KEEP = """
INSERT INTO main.meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""
_NEVER = 1_000_000
"""A format that no program will have."""


def unfinished_move(db: Connected) -> str | None:
    """The token of a move into this database that isn't committed; None: there is none."""
    if db.execute("SELECT to_regclass('deliveryd_move.unfinished')").fetchone() == (None,):
        return None
    row = db.execute("SELECT token FROM deliveryd_move.unfinished").fetchone()
    return "" if row is None else str(row[0])


def begin_move(db: Connected, token: str) -> None:
    """Let no worker begin here until the move with this token is committed."""
    with db.transaction():
        db.execute("CREATE SCHEMA deliveryd_move")
        db.execute("CREATE TABLE deliveryd_move.unfinished (token text NOT NULL)")
        db.execute("INSERT INTO deliveryd_move.unfinished VALUES (%s)", (token,))


def end_move(db: Connected) -> None:
    """The move into this database is over, with the transaction that is open."""
    db.execute("DROP TABLE deliveryd_move.unfinished")  # first: it notices what another connection made
    db.execute("DROP SCHEMA deliveryd_move")


def mark_moved(db: Connected, token: str, where: str) -> None:
    """Mark the journal as moved, in the transaction that is open: older programs refuse it for its format.

    `where` is told to people.
    """
    for row in ((MOVED_BY, token), (MOVED_TO, where)):
        db.execute(_KEEP, row)
    db.execute("INSERT INTO main.meta SELECT 'moved', value FROM main.meta WHERE key = 'written_since'")
    db.execute("UPDATE main.meta SET value = %s WHERE key = 'written_since'", (str(_NEVER),))


def moved_by(db: Connected) -> str | None:
    """The token of the move that marked the journal; None: it isn't marked."""
    if db.execute("SELECT to_regclass('main.meta')").fetchone() == (None,):
        return None
    row = db.execute(
        "SELECT value FROM main.meta WHERE key = %s AND EXISTS (SELECT 1 FROM main.meta WHERE key = 'moved')",
        (MOVED_BY,),
    ).fetchone()
    return None if row is None else str(row[0])


def unmark_moved(db: Connected) -> bool:
    """Let the journal be used again, in the transaction that is open; return whether it was marked."""
    if db.execute("SELECT to_regclass('main.meta')").fetchone() == (None,):
        return False
    since = db.execute("DELETE FROM main.meta WHERE key = 'moved' RETURNING value").fetchone()
    if since is not None:
        db.execute("UPDATE main.meta SET value = %s WHERE key = 'written_since'", since)
    return since is not None


FORMAT = 1
"""The format that this program writes."""

WRITTEN_SINCE = 1
"""The format of the oldest program that may still write while this format is in use."""

OF_LOG = ("message", "unaccepted", "tombstone", "provider")
"""The tables whose rows name their log; events and posts have it in their numbers."""

_LOG = "current_setting('deliveryd.log')::bigint"
_BY_NUMBER = f"{{0}} > {_LOG} << {LOG_BITS} AND {{0}} < ({_LOG} + 1) << {LOG_BITS}"
_VIEWS = {
    **dict.fromkeys(OF_LOG, f"log = {_LOG}"),
    "event": _BY_NUMBER.format("seq"),
    "post": _BY_NUMBER.format("last"),
    "log": f"number = {_LOG}",
}
"""What is true of the rows of the log that is worked on."""

_LOCK = 0x64_6C_76_64  # "dlvd": of everything that changes the schema or who works

# What SQLite has and PostgreSQL hasn't.
_FUNCTIONS = """
CREATE SCHEMA main; CREATE SCHEMA own;
SET LOCAL search_path = main;
CREATE FUNCTION iif(boolean, anycompatible, anycompatible) RETURNS anycompatible LANGUAGE sql IMMUTABLE
    AS 'SELECT CASE WHEN $1 THEN $2 ELSE $3 END';
CREATE FUNCTION max(bigint, bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS 'SELECT CASE WHEN $1 IS NULL OR $2 IS NULL THEN NULL ELSE greatest($1, $2) END';
CREATE FUNCTION min(bigint, bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS 'SELECT CASE WHEN $1 IS NULL OR $2 IS NULL THEN NULL ELSE least($1, $2) END';
CREATE FUNCTION instr(text, text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT strpos($1, $2)';
"""

_IN_POSTGRESQL = {
    r"--[^\n]*": "",
    r"\bseq INTEGER PRIMARY KEY,(\s+message_id)": r"seq bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,\1",  # noqa: E501
    r"\b(state|doubt|failed_next|delivered|silent) INTEGER\b": r"\1 smallint",
    r"\b(\w+_tries|stay|generation|times|refusals|count) INTEGER NOT NULL\b": r"\1 integer NOT NULL",
    r"\brefusals INTEGER\b": "refusals integer",
    r"\bINTEGER\b": "bigint",
    r"\bTEXT\b": 'text COLLATE "C"',
    r"\bBLOB\b": "bytea",
    r" WITHOUT ROWID": "",
    r"\bVIRTUAL\b": "STORED",
    r"(provider \(\s*name text COLLATE \"C\") PRIMARY KEY": r"\1 NOT NULL",
    r"message_ended ON message \(ended_at, state\)": "message_ended ON message (ended_at, id)",
    r"event_message ON event \(message_id\)": "event_message ON event (message_id, seq)",
    r"message_provider ON message \([^;]*?\)(\s+WHERE)": r"message_provider ON message (provider_id)\1",
}
"""Types, and indexes. What changes often isn't in one, so that the steps of a message stay in their page.

With `seq` in it, the index of a message's events is the cheapest even while the server has no statistics: the
condition of the view is one on `seq`, and another index has all of a log.
"""

_OF_ALL_LOGS = frozenset({"message_provider", "unaccepted_provider"})
"""Indexes that are looked into for the rows of any log."""

_OF_WORKERS = """
ALTER TABLE log ADD holder bigint;            -- the worker that has it, or had it last
ALTER TABLE provider ADD PRIMARY KEY (log, name);
ALTER TABLE stopped ADD change bigint NOT NULL DEFAULT 0;  -- the number of its latest change

CREATE TABLE worker (                         -- one row for each start of a worker: its lease
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,                       -- for people; nothing is decided by it
    began_at bigint NOT NULL,
    format integer NOT NULL,                  -- that its program writes
    lease bigint NOT NULL,                    -- microseconds
    commits bigint NOT NULL DEFAULT 0,        -- raised by each of its commits: fence, heartbeat, and proof
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp(),    -- for people, and for their orders
    ended text,                               -- NULL: live; how its lease ended
    providers text[] COLLATE "C" NOT NULL DEFAULT '{}',
    pauses bigint NOT NULL DEFAULT 0          -- the version of the pauses that it goes by
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
INSERT INTO worker (id, name, began_at, format, lease, ended) OVERRIDING SYSTEM VALUE
    VALUES (0, '', 0, 0, 0, 'forgotten');     -- its counter: the highest number of a deleted row

CREATE TABLE version (                        -- what workers watch; raised by whoever changes it
    kind text COLLATE "C" PRIMARY KEY, number bigint NOT NULL
);
INSERT INTO version VALUES ('pauses', 0), ('stops', 0), ('down', 0);
CREATE FUNCTION raise_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE main.version SET number = number + 1 WHERE kind = TG_ARGV[0];
    RETURN NULL;
END $$;
CREATE FUNCTION number_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE main.version SET number = number + 1 WHERE kind = 'stops' RETURNING number INTO NEW.change;
    RETURN NEW;
END $$;
CREATE TRIGGER watched AFTER INSERT OR UPDATE OR DELETE ON pause
    FOR EACH ROW EXECUTE FUNCTION raise_version('pauses');
CREATE TRIGGER watched BEFORE INSERT OR UPDATE ON stopped FOR EACH ROW EXECUTE FUNCTION number_change();
CREATE TRIGGER watched AFTER INSERT OR UPDATE ON meta
    FOR EACH ROW WHEN (NEW.key = 'down_since') EXECUTE FUNCTION raise_version('down');
CREATE INDEX stopped_change ON stopped (change);

CREATE TABLE inbox (                          -- what reaches a log by others than the worker that has it
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    log bigint NOT NULL,
    kind text NOT NULL, body text NOT NULL,
    answer text                               -- of what is waited for
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX inbox_log ON inbox (log, seq) WHERE answer IS NULL;

CREATE TABLE pace (                           -- of those with a rate: see pacing.py; instants of the database
    provider text COLLATE "C" PRIMARY KEY, next_at bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE TABLE probe (                          -- whose turn to probe is taken, and until when
    provider text COLLATE "C" PRIMARY KEY, since bigint NOT NULL, until bigint NOT NULL
);
CREATE TABLE loss (                           -- workers that noticed lost commits: see halt.py
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    noticed_at bigint NOT NULL, worker bigint NOT NULL, name text NOT NULL,
    acknowledged bigint NOT NULL, found bigint, accepted_at bigint
);

ALTER TABLE message SET (fillfactor = 50, toast_tuple_target = 4080,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
ALTER TABLE log SET (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
"""

_RECORDED = ("log", "malformed", "unread", "receipt", "stopped", "pause", "decision", "generation")
_OF_FORMAT = ["format", "written_since", "moved", MOVED_TO]
_OTHER_TABLE = """
SELECT c.relname FROM pg_class c
WHERE c.relnamespace IN (to_regnamespace('public'), to_regnamespace('main'), to_regnamespace('own'))
    AND c.relkind IN ('r', 'p', 'f') AND NOT EXISTS (SELECT 1 FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY c.relname LIMIT 1
"""


def _statements() -> Iterator[str]:
    """The statements that make the tables, their indexes, and the views."""
    text = schema.TABLES
    for pattern, other in _IN_POSTGRESQL.items():
        text = re.sub(pattern, other, text)
    views: list[str] = []
    for statement in filter(None, map(str.strip, text.split(";"))):
        kind, name, *rest = re.split(r"[ (]+", statement.removeprefix("CREATE "), maxsplit=4)
        if kind == "TABLE":
            yield statement
            if name in OF_LOG:
                yield f"ALTER TABLE {name} ADD log bigint NOT NULL DEFAULT {_LOG}"
            if name in _VIEWS:
                views.append(f"CREATE VIEW own.{name} AS SELECT * FROM main.{name} WHERE {_VIEWS[name]}")
        elif kind == "INDEX" and rest[1] in OF_LOG and name not in _OF_ALL_LOGS:
            yield re.sub(r"ON (\w+) \(", r"ON \1 (log, ", statement, count=1)
        elif kind == "VIEW":
            yield statement
            views.append(statement.replace("VIEW ", "VIEW own.", 1))
        elif kind == "INDEX":
            yield statement
    yield _OF_WORKERS
    yield "SET LOCAL search_path = own, main"
    yield from views
    yield "SET LOCAL search_path = main"  # of what follows in the transaction


def prepare_schema(db: Connected) -> bool:
    """Create the tables in an empty database; return whether it was empty. Raises JournalUnusable."""
    with db.transaction():
        lock_schema(db)
        is_empty = writable_format(db) is None
        if is_empty:
            _create(db)
        else:
            _renew_index(db)
    return is_empty


def _renew_index(db: Connected) -> None:
    """Make the index anew that an earlier release made otherwise; it works with either."""
    if db.execute(
        "SELECT 1 FROM pg_indexes WHERE indexname = 'message_held' AND indexdef LIKE '%%settings_id%%'"
    ).fetchone():
        return
    db.execute("SET LOCAL search_path = main")
    db.execute("DROP INDEX IF EXISTS message_held")
    statement = next(each for each in _statements() if each.startswith("CREATE INDEX message_held "))
    db.execute(statement.encode(), prepare=False)


def prepare_target(db: Connected) -> None:
    """Like `prepare_schema`, also where a move into this database broke off."""
    with db.transaction():
        lock_schema(db)
        if _format(db) is None:
            _create(db)


def writable_format(db: Connected) -> int | None:
    """The format of the journal in a database; None: there is none yet.

    Raises JournalUnusable when this program can't write it.
    """
    if unfinished_move(db) is not None:
        raise JournalUnusable(
            "a move into this database broke off: run deliveryd journal move again, which finishes it"
        )
    return _format(db)


def _format(db: Connected) -> int | None:
    if not is_there(db, "main.meta"):
        other = _other_table(db)
        if other is None:
            return None
        if not is_there(db, "main.meta"):  # or a worker that starts has just made them all
            raise _not_ours(other)
    try:
        rows = db.execute("SELECT key, value FROM main.meta WHERE key = ANY(%s)", (_OF_FORMAT,))
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


def _other_table(db: Connected) -> str | None:
    """A table of another program in a database without a journal; tables of extensions don't count."""
    row = db.execute(_OTHER_TABLE).fetchone()
    return None if row is None else str(row[0])


def is_there(db: Connected, table: str) -> bool:
    """Whether there is such a table."""
    return db.execute("SELECT to_regclass(%s)", (table,)).fetchone() != (None,)


def _not_ours(table: str) -> JournalUnusable:
    return JournalUnusable(
        f"the database holds tables that aren't deliveryd's, as {table}: give it a database of its own"
    )


def _create(db: Connected) -> None:
    db.execute(_FUNCTIONS, prepare=False)
    for statement in _statements():
        db.execute(statement.encode(), prepare=False)
    values = {
        "format": FORMAT,
        "written_since": WRITTEN_SINCE,
        "namespace": uuid.uuid4().hex[:12],
        "stop_key": secrets.token_hex(32),
    }
    for key, value in values.items():
        db.execute("INSERT INTO main.meta VALUES (%s, %s)", (key, str(value)))


def first_filled(db: Connected) -> str | None:
    """The name of a table in which a journal has left something; None: nothing was ever recorded."""
    for table in _RECORDED:
        if db.execute(f"SELECT EXISTS (SELECT 1 FROM main.{table})".encode()).fetchone() == (True,):
            return table
    return None


def lock_schema(db: Connected) -> None:
    """Until the transaction ends, no other session changes the schema or begins to work."""
    db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))


def hold_schema(db: Connected) -> None:
    """Like `lock_schema`, but until the connection is closed: a snapshot that is taken next is behind it."""
    db.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))


def check_movable(db: Connected) -> None:
    """Raise JournalUnusable when this program can't copy all of a journal, or it was moved by now."""
    form = writable_format(db)
    if form is not None and form > FORMAT:
        raise JournalUnusable(
            f"the journal has format {form}, and this deliveryd copies format {FORMAT}: move it with the"
            " release that wrote it"
        )


def check_readable(db: Connected, place: str) -> None:
    """Raise JournalAbsent when the database holds no journal, JournalUnusable for one of another format."""
    if writable_format(db) is None:
        raise JournalAbsent(f"there is no journal in {place}: deliveryd hasn't run with it yet")
