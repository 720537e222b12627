"""The journal of a run in a PostgreSQL database of its own, which several workers can share."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import lru_cache, partial
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import anyio
import psycopg

from deliveryd.errors import JournalUnreachable
from deliveryd.journal.journal import Journal
from deliveryd.journal.log import LOG_BITS
from deliveryd.journal.opening import JournalTerms
from deliveryd.journal.orders import ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql import opening, workers
from deliveryd.journal.postgresql.connection import Connected, connect_to_read, connect_to_write
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.postgresql.schema import prepare_schema
from deliveryd.journal.reader import Reader
from deliveryd.runtime.threads import Blocking, inline
from deliveryd.worker import wiring
from simulation.disk import DatabaseDisk
from simulation.kept import Audited, Intent, Letter, Row, audited
from simulation.plan import Plan
from simulation.statements import Server, acting
from simulation.world import Wall

LEASE = 8.0
"""Seconds after which a worker that renews nothing is given up: more than requests take, so not many."""

_INTENT = """
SELECT (SELECT value FROM meta WHERE key = 'namespace'), m.generation
FROM message m JOIN log l ON l.number = m.log JOIN worker w ON w.id = l.holder AND w.ended IS NULL
WHERE m.id = %s AND m.state = 4 AND m.provider = %s
"""
_UNDER_WAY = f"""
SELECT EXISTS (SELECT 1 FROM message WHERE state IN (1, 2, 3, 4) OR confirm_by IS NOT NULL)
    OR EXISTS (SELECT 1 FROM log l JOIN event e
        ON e.seq > l.settled AND e.seq < (l.number + 1) << {LOG_BITS})
    OR EXISTS (SELECT 1 FROM inbox WHERE answer IS NULL)
"""  # noqa: S608  # a constant
_FITTING = """
SELECT EXISTS (SELECT 1 FROM receipt r JOIN (
    SELECT provider_id, provider FROM message UNION ALL SELECT provider_id, provider FROM unaccepted) AS tried
        USING (provider_id, provider)
    WHERE r.message_id IS NULL AND r.dropped_at IS NULL)
"""
_LOGS_OF_OTHERS = """
SELECT 1 FROM log l JOIN worker w ON w.id = l.holder AND w.ended IS NULL
WHERE w.id < (SELECT max(id) FROM worker) LIMIT 1
"""
_PROVIDER_IDS = "SELECT provider_id FROM receipt WHERE seq = ANY(%s::int8[])"


def boot_time() -> float:
    """The run's own seconds, by which leases go."""
    return anyio.current_time()


class ServerClock:
    """The server's clock, which jumps as the plan says."""

    def __init__(self, plan: Plan) -> None:
        self._wall = Wall(plan.jumps)

    def now(self) -> int:
        """The present instant."""
        return self._wall.at(anyio.current_time())


class DatabaseJournal:
    """A database of a server, by its URL; it is dropped at the end."""

    is_shared = True

    def __init__(self, server: str, plan: Plan) -> None:
        self.disk = DatabaseDisk(plan.shortages)
        self._server = server
        self._seed = plan.seed
        self._clock = ServerClock(plan)
        self._connections: list[Connected] = []
        self._name = f"run{uuid4().hex}"
        self._admin(f"CREATE DATABASE {self._name} TEMPLATE {_template(server)} STRATEGY FILE_COPY")
        self.place = JournalDatabase(server.replace("/postgres?", f"/{self._name}?"))
        self._observer: Connected = connect_to_read(self.place)
        self._reader = database_reader(self.place)

    @contextmanager
    def worked_with(self) -> Iterator[None]:
        """Whatever the configuration names; leases go by the run's own time."""
        with (
            patch.object(wiring, "open_journal", self._open),
            patch.object(opening, "connect_to_write", self._reached(connect_to_write)),
            patch.object(opening, "connect_to_read", self._reached(connect_to_read)),
            patch.object(workers, "connect_to_write", self._reached(connect_to_write)),
            patch.object(workers, "connect_to_read", self._reached(connect_to_read)),
        ):
            yield

    def _open(
        self, _place: object, terms: JournalTerms, **others: Any
    ) -> AbstractAsyncContextManager[Journal]:
        return opening.open_shared_journal(
            self.place,
            details_field=terms.details_field,
            keep_variables=terms.keep_variables,
            lease=LEASE,
            service=terms.service,
            boot_time=boot_time,
            clock=self._clock,
            **others,
        )

    def _reached(self, connect: Callable[..., Connected]) -> Callable[..., Connected]:
        def reach(*terms: Any) -> Connected:
            if self.disk.is_short:
                raise JournalUnreachable("the plan cuts the database off")
            process = acting()
            db = connect(*terms) if process is None else process.connected(partial(connect, *terms))
            self._connections.append(db)
            return db

        return reach

    def server(self, seconds: float) -> Server:
        """What the stage sees of the server, where workers' statements take so long."""
        self._observer.execute("SET lock_timeout = '5s'")
        return Server(self._observer, self._seed, seconds)

    def is_at_rest(self) -> bool:
        """Whether no message is on its way, no event waits, and nothing lies in an inbox."""
        return not self._ask(_UNDER_WAY)[0][0]

    def has_fitting_receipts(self) -> bool:
        """Whether a receipt is kept as one that fits nothing, though a try has its provider's id."""
        return bool(self._ask(_FITTING)[0][0])

    def joined(self, terms: JournalTerms, blocking: Blocking) -> AbstractAsyncContextManager[Journal]:
        """Open it as a worker does."""
        return self._open(self.place, terms, blocking=blocking)

    def at_rest(self) -> AbstractAsyncContextManager[Journal]:
        """Open it as a command does that finds no worker."""
        return self.opened(inline)

    def opened(self, blocking: Blocking) -> AbstractAsyncContextManager[PostgresqlJournal]:
        """Open it as a command does, in a process of its own."""
        return opening.open_shared_journal(
            self.place, lease=LEASE, boot_time=boot_time, clock=self._clock, blocking=blocking
        )

    def end_leases(self, at: int) -> None:
        """By `workers fence`."""
        listed = workers.Workers(self.place)
        for each in listed.list():
            listed.fence(each, at, workers.By(None, None, "a plan"))

    def reader(self) -> Reader:
        """What commands read it with."""
        return self._reader

    def rows(self) -> Mapping[int, Row]:
        """All messages that aren't pruned, by their ids."""
        return {
            row.id: row for row in (Row(*row) for row in self._ask("SELECT id, state, provider FROM message"))
        }

    def pruned(self) -> frozenset[int]:
        """Messages of which only a tombstone is left."""
        return frozenset(id_ for (id_,) in self._ask("SELECT id FROM tombstone"))

    def forgotten(self) -> frozenset[int]:
        """Those of which only is known how often they began."""
        return frozenset(id_ for (id_,) in self._ask("SELECT id FROM generation"))

    def malformed(self) -> frozenset[str]:
        """The elements of the queue that are no messages, as they came."""
        return frozenset(raw for (raw,) in self._ask("SELECT raw FROM malformed"))

    def intents(self, message_id: int, provider: str) -> Sequence[Intent]:
        """The intent to send a message to a provider, if a worker sends it there that nobody ended."""
        return [Intent(*row) for row in self._ask(_INTENT, message_id, provider)]

    def in_line(self) -> int:
        """How many messages are taken, ready, or being sent."""
        ((count,),) = self._ask("SELECT count(*) FROM message WHERE state IN (1, 2, 4)")
        return int(count)

    def has_deadlines(self) -> bool:
        """Whether a message that was sent waits for its receipt deadline."""
        return bool(self._ask("SELECT 1 FROM message WHERE confirm_by IS NOT NULL LIMIT 1"))

    def has_mail(self) -> bool:
        """Whether something waits for the worker that has, or takes over, the log that it is about."""
        return bool(self._ask("SELECT 1 FROM inbox WHERE answer IS NULL LIMIT 1"))

    def has_logs_of_others(self) -> bool:
        """Whether an earlier worker that crashed has a log until its lease is over."""
        return bool(self._ask(_LOGS_OF_OTHERS))

    def held_in_doubt(self) -> Sequence[int]:
        """The messages that an operator has to decide about."""
        return [doubtful.message_id for doubtful in self._reader.in_doubt(None, None)]

    def dead_letters(self, kind: ItemKind) -> Sequence[Letter]:
        """What else of a kind needs an operator's decision."""
        return [Letter(one.key, one.message_id) for one in self._reader.dead_letters([kind], 0, "")]

    def provider_ids(self, receipts: Collection[str]) -> Sequence[str]:
        """The providers' ids that unmatched receipts name."""
        return [id_ for (id_,) in self._ask(_PROVIDER_IDS, [int(key) for key in receipts])]

    def audit(self) -> Audited:
        """Look for contradictions."""
        return audited(self._reader)

    def close(self) -> None:
        """Look no more, and leave nothing, also of workers that crashed."""
        for db in self._connections:
            db.close()
        self._observer.close()
        self._admin(f"DROP DATABASE {self._name} WITH (FORCE)")

    def _ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        return self._observer.execute(question, values or None).fetchall()

    def _admin(self, statement: str) -> None:
        _administrator(self._server).execute(statement)


@lru_cache(maxsize=1)
def _administrator(server: str) -> Connected:
    db: Connected = psycopg.connect(server, autocommit=True)
    atexit.register(db.close)
    return db


@lru_cache(maxsize=1)
def _template(server: str) -> str:
    """The name of a database with a journal that no worker has used yet; one for each process."""
    name = f"template{uuid4().hex}"
    _administrator(server).execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
    with connect_to_write(JournalDatabase(server.replace("/postgres?", f"/{name}?")), LEASE) as db:
        prepare_schema(db)
    return name
