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
from deliveryd.journal.base import Journal
from deliveryd.journal.opening import JournalTerms
from deliveryd.journal.orders import ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql import opening, upkeep, workers
from deliveryd.journal.postgresql.connection import Db, connect_to_read, connect_to_write
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.reader import PostgresqlReader
from deliveryd.journal.postgresql.schema import LOG_BITS, prepare_schema
from deliveryd.journal.postgresql.values import VISIBLE
from deliveryd.journal.reader import Reader
from deliveryd.runtime.threads import Blocking, inline
from deliveryd.worker import wiring
from simulation.disk import DatabaseDisk
from simulation.kept import Audited, Intent, Letter, Row
from simulation.plan import Plan
from simulation.statements import Server, acting
from simulation.world import Wall

LEASE = 8.0
"""Seconds after which a worker that renews nothing is given up: more than requests take, so not many."""

_ROWS = f"SELECT m.id, m.state, m.provider FROM message m WHERE {VISIBLE}"  # noqa: S608  # a constant
_INTENT = """
SELECT (SELECT value FROM meta WHERE key = 'namespace'), m.beginning
FROM seen JOIN message m ON m.day = seen.day AND m.id = seen.id
    JOIN worker w ON w.id = m.owner JOIN worker h ON h.id = w.holder AND h.ended IS NULL
WHERE seen.id = %s AND m.state = 4 AND m.provider = %s
"""
_UNDER_WAY = f"""
SELECT EXISTS (SELECT 1 FROM message WHERE state IN (1, 2, 4)) OR EXISTS (SELECT 1 FROM waiting)
    OR EXISTS (SELECT 1 FROM worker w JOIN event e
        ON e.seq > w.settled AND e.seq < (w.id + 1) << {LOG_BITS})
    OR EXISTS (SELECT 1 FROM inbox)
    OR EXISTS (SELECT 1 FROM awaited WHERE confirm_by IS NOT NULL)
    OR EXISTS (SELECT 1 FROM unmatched WHERE looks IS NOT NULL AND dropped_at IS NULL)
"""  # noqa: S608  # a constant
_PROVIDER_IDS = "SELECT provider_id FROM unmatched WHERE seq = ANY(%s::int8[])"
_HELD = f"SELECT m.id FROM message m WHERE m.state = 5 AND {VISIBLE} ORDER BY m.id"  # noqa: S608  # a constant
_SET_ASIDE = "EXISTS (SELECT 1 FROM message m WHERE m.id = e.message_id AND m.state = 9 AND m.day = e.day)"
_REFUSED = "SELECT {0}, e.message_id FROM event e WHERE e.refused_at IS NOT NULL AND e.dropped_at IS NULL"
_LETTERS: Mapping[ItemKind, str] = {
    ItemKind.EVENT: (
        f"{_REFUSED.format('e.seq')} AND NOT (e.status = 'dequeued' AND {_SET_ASIDE}) ORDER BY e.refused_at"
    ),
    ItemKind.MESSAGE: (
        f"{_REFUSED.format('e.message_id')} AND e.status = 'dequeued' AND {_SET_ASIDE} ORDER BY e.refused_at"
    ),
    ItemKind.MALFORMED: (
        "SELECT substr(digest, 1, 16), message_id FROM malformed WHERE dropped_at IS NULL ORDER BY last_at"
    ),
    ItemKind.RECEIPT: "SELECT seq, NULL FROM unmatched WHERE dropped_at IS NULL ORDER BY received_at",
    ItemKind.REPORT: "SELECT substr(digest, 1, 16), NULL FROM unread WHERE dropped_at IS NULL",
}


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
        self._connections: list[Db] = []
        self._name = f"run{uuid4().hex}"
        self._admin(f"CREATE DATABASE {self._name} TEMPLATE {_template(server)} STRATEGY FILE_COPY")
        self.place = JournalDatabase(server.replace("/postgres?", f"/{self._name}?"))
        self._observer: Db = connect_to_read(self.place)

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

    def _reached(self, connect: Callable[..., Db]) -> Callable[..., Db]:
        def reach(*terms: Any) -> Db:
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
        """Whether no message is on its way, no event waits, and no receipt is looked at again."""
        return not self._ask(_UNDER_WAY)[0][0]

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
        return PostgresqlReader(self.place)

    def rows(self) -> Mapping[int, Row]:
        """All messages that aren't pruned, by their ids."""
        return {row.id: row for row in (Row(*row) for row in self._ask(_ROWS))}

    def pruned(self) -> frozenset[int]:
        """Messages of which only a tombstone is left."""
        return frozenset(id_ for (id_,) in self._ask("SELECT id FROM tombstone"))

    def forgotten(self) -> frozenset[int]:
        """Those of which only is known how often they began."""
        return frozenset(id_ for (id_,) in self._ask("SELECT id FROM beginning"))

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
        return bool(self._ask("SELECT 1 FROM awaited WHERE confirm_by IS NOT NULL LIMIT 1"))

    def held_in_doubt(self) -> Sequence[int]:
        """The messages that an operator has to decide about."""
        return [id_ for (id_,) in self._ask(_HELD)]

    def dead_letters(self, kind: ItemKind) -> Sequence[Letter]:
        """What else of a kind needs an operator's decision."""
        return [Letter(str(key), message_id) for key, message_id in self._ask(_LETTERS[kind])]

    def provider_ids(self, receipts: Collection[str]) -> Sequence[str]:
        """The providers' ids that unmatched receipts name."""
        return [id_ for (id_,) in self._ask(_PROVIDER_IDS, [int(key) for key in receipts])]

    def audit(self) -> Audited:
        """Look for contradictions."""
        account = upkeep.account(self._observer)
        complaints = [f"audit: {account.gap} messages are missing"] if account.gap else []
        lost = self._ask("SELECT value FROM meta WHERE key = 'batches_lost'")
        return Audited(complaints, int(lost[0][0]) if lost else 0)

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
def _administrator(server: str) -> Db:
    db: Db = psycopg.connect(server, autocommit=True)
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
