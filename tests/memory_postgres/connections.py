"""Connections as psycopg has them, as far as the journal uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace, TracebackType
from typing import Any, Self, TypeVar
from unittest.mock import patch

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus, TransactionStatus

from memory_postgres.database import Server
from memory_postgres.results import NOTHING, Result
from memory_postgres.sessions import Session

T = TypeVar("T")

HOST = "/memory"
_PLAIN = frozenset({int, str, bytes, bool, float, type(None)})
SERVER = f"postgresql:///postgres?host={HOST}"
"""The URL of its database that is always there."""

_SERVER = Server()
_numbers = count(1)


def new_database() -> str:
    """Make an empty database; return its URL."""
    name = f"model{next(_numbers)}"
    _SERVER.create(name)
    return f"postgresql:///{name}?host={HOST}"


@contextmanager
def standing_in() -> Iterator[None]:
    """While it lasts, connections to the host `/memory` are made to the server in memory."""
    usual = psycopg.connect

    def connect(conninfo: str = "", **terms: Any) -> Any:
        given = conninfo_to_dict(conninfo)
        if given.get("host") != HOST:
            return usual(conninfo, **terms)
        return Connection(str(given.get("dbname") or "postgres"))

    with patch.object(psycopg, "connect", connect):
        yield


class Cursor:
    """What a statement returned."""

    def __init__(self, db: Connection, *, as_dicts: bool = False) -> None:
        self._db = db
        self._as_dicts = as_dicts
        self._show(NOTHING)

    def _show(self, result: Result) -> Cursor:
        names = [SimpleNamespace(name=name) for name in result.columns or ()]
        self.description = None if result.columns is None else names
        self.rowcount = result.changed
        rows: list[Any] = result.rows
        if self._as_dicts:
            rows = [dict(zip(result.columns or (), row, strict=True)) for row in rows]
        self._rows = iter(rows)
        return self

    def execute(self, query: str, values: Any = None, **_: object) -> Cursor:
        """Run a statement."""
        return self._show(self._db.run(query, values))

    def fetchone(self) -> Any:
        """The next row."""
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Libpq:
    """What libpq knows of a connection."""

    socket = -1

    def __init__(self, session: Session) -> None:
        self._session = session
        self.status = ConnStatus.OK

    @property
    def transaction_status(self) -> TransactionStatus:
        """Where its transaction stands."""
        return TransactionStatus.UNKNOWN if self.status != ConnStatus.OK else self._session.status

    def finish(self) -> None:
        """Let the connection be gone."""
        self.status = ConnStatus.BAD
        with self._session.server.condition:
            self._session.end()


class _Info:
    """What is known of the server and the connection."""

    server_version = 170000
    host = HOST
    user = "memory"

    def __init__(self, db: Connection) -> None:
        self._db = db
        self.dbname = db.name

    @property
    def backend_pid(self) -> int:
        """The session's number."""
        return self._db.session.pid

    @property
    def transaction_status(self) -> TransactionStatus:
        """Where its transaction stands."""
        return self._db.pgconn.transaction_status

    def parameter_status(self, name: str) -> str:
        """A setting of the server."""
        return {"server_encoding": "UTF8"}[name]


class Connection:
    """A connection to a database in memory."""

    prepared_max: int | None = None
    isolation_level: psycopg.IsolationLevel | None = None

    def __init__(self, name: str) -> None:
        with _SERVER.condition:
            if name not in _SERVER.databases:
                raise psycopg.OperationalError(f'connection failed: FATAL:  database "{name}" does not exist')
            self.database = _SERVER.databases[name]
            self.session = Session(self.database, self._stood)
        self.name = name
        self.pgconn = _Libpq(self.session)
        self.info = _Info(self)
        self.adapters = SimpleNamespace(register_dumper=lambda *_: None)
        self._closed = False

    # how statements are carried out, which a stage may change

    def carry_out(self, work: Callable[[], T]) -> T:
        """Do a statement, or what else the server is asked for."""
        return work()

    def stand(self, seconds: float | None) -> None:
        """Wait until something happened at the server."""
        self.session.server.condition.wait(seconds)

    def _stood(self, seconds: float | None) -> None:
        self.stand(seconds)  # whatever that is by now

    # psycopg's own

    @property
    def closed(self) -> bool:
        """Whether it is closed or lost."""
        return self.pgconn.status != ConnStatus.OK

    @property
    def broken(self) -> bool:
        """Whether it is lost."""
        return self.closed and not self._closed

    def run(self, query: str, values: Any = None) -> Result:
        """Run a statement, with its values."""
        given = _adapted(values)
        return self.carry_out(lambda: self._at_once(query, given))

    def _at_once(self, query: str, values: Any) -> Result:
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        with self.session.server.condition:
            try:
                return self.session.execute(query, values)
            except errors.AdminShutdown:
                self.pgconn.finish()
                raise

    def execute(self, query: str, values: Any = None, **_: object) -> Cursor:
        """Run a statement."""
        return Cursor(self).execute(query, values)

    def cursor(self, *, row_factory: object = None) -> Cursor:
        """What runs statements; a row factory: rows are dictionaries."""
        return Cursor(self, as_dicts=row_factory is not None)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction, or a savepoint within one."""
        is_outer = self.info.transaction_status is TransactionStatus.IDLE
        repeatable = self.isolation_level is psycopg.IsolationLevel.REPEATABLE_READ
        begin = f"BEGIN{' ISOLATION LEVEL REPEATABLE READ' if repeatable else ''}"
        self.run(begin if is_outer else "SAVEPOINT")
        try:
            yield
        except BaseException:
            if not self.closed:
                self.run("ROLLBACK" if is_outer else "ROLLBACK TO")
            raise
        self.run("COMMIT" if is_outer else "RELEASE")

    def commit(self) -> None:
        """Commit."""
        self.run("COMMIT")

    def rollback(self) -> None:
        """Roll back."""
        self.run("ROLLBACK")

    def add_notice_handler(self, handler: object) -> None:
        """The server has nothing to say."""

    def close(self) -> None:
        """Close it."""
        if not self.closed:
            self._closed = True
            self.pgconn.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _adapted(values: Any) -> Any:
    """Values as they reach the server."""
    if values is None:
        return None
    if isinstance(values, dict):
        return {name: _value(value) for name, value in values.items()}
    return [_value(value) for value in values]


def _value(value: Any) -> Any:
    kind = type(value)
    if kind in (list, tuple):
        return [_value(each) for each in value]
    if kind not in _PLAIN:
        if isinstance(value, int):
            value = int(value)
        elif isinstance(value, str):
            value = str.__str__(value)
        else:
            raise psycopg.ProgrammingError(f"cannot adapt type {kind.__name__!r}")
    if isinstance(value, str):
        if "\0" in value:
            raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        if not value.isascii():
            value.encode()
    elif kind is not bool and isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise errors.NumericValueOutOfRange("value is out of range for type bigint")
    return value
