"""The journal's database and its workers, as operators see them, and the orders about workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from time import time
from typing import NamedTuple, TypeVar

import psycopg

from deliveryd.errors import JournalLocked
from deliveryd.journal.log import LOG_BITS
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.commits import translated, translated_at_opening
from deliveryd.journal.postgresql.connection import Connected, connect_to_read, connect_to_write
from deliveryd.journal.postgresql.database import Database, plain
from deliveryd.journal.postgresql.lease import (
    ORDERED,
    Loss,
    accept_losses,
    live_providers,
    live_workers,
    losses,
)
from deliveryd.journal.postgresql.schema import check_readable, is_there, lock_schema, writable_format
from deliveryd.journal.sql.orders import RECORD
from deliveryd.journal.sql.own_values import keep_service, kept_service
from deliveryd.model import SECOND
from deliveryd.states import State

T = TypeVar("T")

_SESSION_LIMIT = 3.0
"""Seconds after which the server ends a command that stands still within a transaction."""

_WORKERS = f"""
WITH held AS (
    SELECT l.holder, sum(m.taken)::int8 AS taken, sum(m.ready)::int8 AS ready,
        sum(m.sending)::int8 AS sending,
        sum((SELECT count(*) FROM main.event e WHERE e.seq > l.settled
            AND e.seq < (l.number + 1) << {LOG_BITS}))::int8 AS events
    FROM main.log l CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE state = {State.TAKEN:d}) AS taken,
            count(*) FILTER (WHERE state = {State.READY:d}) AS ready,
            count(*) FILTER (WHERE state = {State.SENDING:d}) AS sending
        FROM main.message WHERE log = l.number AND ended_at IS NULL AND due_at IS NULL) AS m
    WHERE l.holder IS NOT NULL GROUP BY l.holder)
SELECT w.id, w.name, w.began_at, w.lease / {SECOND}::float8, w.commits,
    greatest(extract(epoch FROM clock_timestamp() - w.renewed_at), 0)::float8, w.ended,
    coalesce(held.taken, 0), coalesce(held.ready, 0), coalesce(held.sending, 0), coalesce(held.events, 0),
    w.providers
FROM main.worker w LEFT JOIN held ON held.holder = w.id
WHERE w.id > 0 AND (w.ended IS NULL OR held.taken + held.ready + held.sending + held.events > 0)
ORDER BY w.id
"""
_BEHIND = "SELECT w.id FROM main.worker w JOIN main.version v ON v.kind = 'pauses' AND w.pauses < v.number"
_FENCE = f"UPDATE main.worker SET ended = '{ORDERED}' WHERE id = %s AND ended IS NULL"
_HOW_ENDED = f"""
SELECT ended FROM (
    SELECT ended, id FROM main.worker WHERE id > 0 AND ended IS NOT NULL AND %(name)s IN (name, id::text)
    UNION ALL SELECT '{ORDERED}', 0 FROM main.decision
    WHERE verb = '{Action.FENCE}' AND kind = '{ItemKind.WORKER}' AND key = %(name)s) AS ended
ORDER BY id DESC LIMIT 1
"""


class WorkerRecord(NamedTuple):
    """A worker of the journal, or what an ended one left.

    `lease` and `still` are seconds: how long its lease is, and for how long its counter `commits` stood still
    by the database's clock. `ended` None: its lease isn't ended. `taken`, `ready`, `sending`: messages.
    `events`: those that the service hasn't accepted. What it took over from others is among them.
    """

    id: int
    name: str
    began_at: int
    lease: float
    commits: int
    still: float
    ended: str | None
    taken: int
    ready: int
    sending: int
    events: int
    providers: Sequence[str]

    @property
    def is_over(self) -> bool:
        """Whether its counter stood still for a whole lease, so that another worker may end it."""
        return self.ended is None and self.still >= self.lease


class By(NamedTuple):
    """Who decided, and why; the fields are those of `orders.Order`."""

    user: str | None
    caller: str | None
    reason: str | None


class Workers:
    """Reads and orders of the workers of one journal. Each method raises JournalError."""

    def __init__(self, source: JournalDatabase) -> None:
        self._source = source

    def list(self) -> Sequence[WorkerRecord]:
        """Return the workers, and the ended ones of which something is left."""
        return self._run(connect_to_read, _listed)

    def providers(self) -> Collection[str]:
        """Return the providers that live workers have."""
        return self._run(connect_to_read, live_providers)

    def behind(self) -> Sequence[str]:
        """Return the names of workers with a lease that don't go by the latest pauses yet."""

        def read(db: Connected) -> Sequence[str]:
            behind = {id_ for (id_,) in db.execute(_BEHIND)}
            live = [each for each in _listed(db) if each.ended is None and not each.is_over]
            return [each.name for each in live if each.id in behind]

        return self._run(connect_to_read, read)

    def how_ended(self, name: str) -> str | None:
        """Return how the lease of an ended worker of this name or number ended; None: there is none.

        Of one that ended longer ago than messages are kept it isn't known any more.
        """

        def read(db: Connected) -> str | None:
            found: tuple[str] | None = db.execute(_HOW_ENDED, {"name": plain(name)}).fetchone()
            return found[0] if found else None

        return self._run(connect_to_read, read)

    def fence(self, worker: WorkerRecord, at: int, by: By) -> bool:
        """End a worker's lease, though it may be alive; False: it is over already.

        A commit that is under way comes before it.
        """

        def fence(db: Connected) -> bool:
            if not db.execute(_FENCE, (worker.id,)).rowcount:
                return False
            _note(db, at, (Action.FENCE, ItemKind.WORKER, worker.name), by)
            return True

        return self._run(_connect, fence)

    def losses(self) -> Sequence[Loss]:
        """Return which workers noticed that acknowledged commits were lost, since it was last accepted."""
        return self._run(connect_to_read, losses)

    def accept_losses(self, at: int, by: By) -> int:
        """Let workers begin again; return how many had noticed a loss."""

        def accept(db: Connected) -> int:
            lock_schema(db)
            for each in losses(db):
                _note(db, at, (Action.ACCEPT_LOSS, ItemKind.WORKER, each.name), by)
            return accept_losses(db, at)

        return self._run(_connect, accept)

    def adopt_service(self, order: Order, at: int) -> str | None:
        """See `service_adoption.adopt_service`."""
        (service,) = order.keys

        def adopt(db: Connected) -> str | None:
            lock_schema(db)
            before = kept_service(Database(db))
            if before == service:
                return before
            if workers := live_workers(db):
                names = ", ".join(each.name for each in workers)
                raise JournalLocked(
                    f"the journal is in use by {names}: stop all workers of it first; of one that is"
                    " gone, end the lease with deliveryd workers fence"
                )
            keep_service(Database(db), service)
            by = By(order.user, order.caller, order.reason)
            _note(db, at, (order.verb, order.kind, service), by)
            return before

        return self._run(_connect, adopt)

    def _run(self, connect: Callable[[JournalDatabase], Connected], work: Callable[[Connected], T]) -> T:
        try:
            with connect(self._source) as db, db.transaction():
                check_readable(db, self._source.name)
                return work(db)
        except psycopg.Error as error:
            raise translated(error) from error


def _connect(source: JournalDatabase) -> Connected:
    return connect_to_write(source, _SESSION_LIMIT)


def _note(db: Connected, at: int, what: tuple[Action, ItemKind, str], by: By) -> None:
    Database(db).execute(RECORD, (at, *what, None, *by))


def _listed(db: Connected) -> Sequence[WorkerRecord]:
    return [WorkerRecord._make((*row[:-1], tuple(row[-1]))) for row in db.execute(_WORKERS)]


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
