"""Looks at the journal's database without changing anything: whether a worker could use it, and who does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from time import time
from typing import NamedTuple

import psycopg

from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.commits import translated_at_opening
from deliveryd.journal.postgresql.connection import Connected, connect_to_read
from deliveryd.journal.postgresql.database import Database
from deliveryd.journal.postgresql.halt import losses
from deliveryd.journal.postgresql.lease import live_workers
from deliveryd.journal.postgresql.schema import is_there, writable_format
from deliveryd.journal.sql.own_values import kept_service


class ExaminedDatabase(NamedTuple):
    """A database that a journal can be kept in.

    `server` names its version, `where` the database and its host. `exists`: whether it holds a journal.
    `missing` says what this user may not do that a worker has to. `synchronous` and `fsync` are settings as
    the server has them for this user. `ahead`: seconds by which its clock is ahead of this machine's.
    `workers` are those whose leases aren't over. `halted`: the worker that noticed a loss of
    commits, which no operator has accepted yet. `service`: the address that it
    belongs to; None: to none yet.
    """

    server: str
    where: str
    exists: bool
    missing: str | None
    synchronous: str
    fsync: str
    ahead: float
    workers: Sequence[str]
    halted: str | None
    service: str | None


_SETTINGS = """
SELECT (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
    (SELECT setting FROM pg_settings WHERE name = 'fsync')
"""
_MAY_CREATE = "SELECT coalesce(has_database_privilege(current_database(), 'CREATE'), false)"
_FOREIGN = """
SELECT c.relname, pg_get_userbyid(c.relowner) FROM pg_class c
WHERE c.oid = to_regclass('main.message') AND NOT pg_has_role(c.relowner, 'USAGE')
"""


def examine_database(source: JournalDatabase) -> ExaminedDatabase:
    """Connect as a worker does, and look. Raises JournalUnusable, or JournalUnreachable."""
    try:
        with closing(connect_to_read(source)) as db:
            exists = writable_format(db) is not None
            synchronous, fsync = db.execute(_SETTINGS).fetchone() or ("", "")
            return ExaminedDatabase(
                f"PostgreSQL {db.info.server_version // 10_000}",
                f"{db.info.dbname} at {db.info.host}",
                exists,
                _missing(db),
                synchronous,
                fsync,
                _ahead(db),
                [each.name for each in live_workers(db)] if exists else [],
                next((each.name for each in losses(db)), None) if exists else None,
                kept_service(Database(db)) if exists else None,
            )
    except psycopg.Error as error:
        raise translated_at_opening(error) from error


def _missing(db: Connected) -> str | None:
    """What a worker has to do that this user may not, and what to do about it."""
    user = db.info.user
    if (foreign := db.execute(_FOREIGN).fetchone()) is not None:
        owner = foreign[1]
        return f"its tables belong to {owner}: GRANT {owner} TO {user}"
    if not is_there(db, "main.meta") and db.execute(_MAY_CREATE).fetchone() != (True,):
        return f"{user} may not create schemas: let {user} own the database, or GRANT CREATE ON DATABASE"
    return None


def _ahead(db: Connected) -> float:
    """Seconds by which the database's clock is ahead, to half of the time that an answer takes."""
    before = time()
    (theirs,) = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone() or (before,)
    return float(theirs) - (before + time()) / 2
