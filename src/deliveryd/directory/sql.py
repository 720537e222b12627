"""Customers in a database, queried with SQLAlchemy and an asyncio driver, read-only."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import sniffio
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from deliveryd.directory.base import Terms
from deliveryd.directory.sql_connection import connect_safely
from deliveryd.directory.sql_options import (
    ID_PARAMETER,
    IDS_PARAMETER,
    SqlOptions,
    database_address,
    sqlite_file,
    statement,
)
from deliveryd.errors import ConfigError, CustomerUnreadable, DirectoryUnavailable
from deliveryd.field_lists import field_text
from deliveryd.model import INT64, Customer

READ_ONLY: Mapping[str, str] = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
}
"""The statement that makes a connection read-only, per database."""

NOBODY = 0
"""The ID that `probe` queries."""

_WRITTEN = (str, int, float, Decimal, UUID)


class SqlSource:
    """Queries a database, for one customer or for many at a time."""

    def __init__(self, options: SqlOptions, engine: AsyncEngine) -> None:
        self._engine = engine
        self._statement = statement(options)
        self._for_many = options.for_many
        self._place = options.url.partition("?")[0]
        self.batch_size = options.batch_size if options.for_many else 1

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        """Look up customers. Raises DirectoryUnavailable."""
        known = [id_ for id_ in ids if id_ in INT64]  # a database can store no other
        return await (self._find_all(known) if self._for_many else self._find(known)) if known else {}

    async def probe(self) -> str | None:
        """Run the query for an ID that doesn't exist."""
        try:
            await self.look_up([NOBODY])
        except DirectoryUnavailable as error:
            return f"{self._place}: {error}"
        return None

    async def columns(self) -> frozenset[str]:
        """Return the fields that the query selects. Raises DirectoryUnavailable."""
        try:
            async with self._engine.connect() as connection:
                asked = {IDS_PARAMETER: [NOBODY]} if self._for_many else {ID_PARAMETER: NOBODY}
                result = await connection.execute(self._statement, asked)
                return frozenset(result.keys()) if result.returns_rows else frozenset()
        except (SQLAlchemyError, OSError) as error:
            raise DirectoryUnavailable(_reason(error)) from None

    async def aclose(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    async def _find(self, ids: Collection[int]) -> Mapping[int, Customer]:
        found: dict[int, Customer] = {}
        for id_ in ids:
            rows = await self._rows({ID_PARAMETER: id_})
            if len(rows) > 1:
                raise CustomerUnreadable("the query gives more than one row for a customer")
            if rows:
                found[id_] = _customer(id_, rows[0])
        return found

    async def _find_all(self, ids: Collection[int]) -> Mapping[int, Customer]:
        found: dict[int, Customer] = {}
        for row in await self._rows({IDS_PARAMETER: list(ids)}):
            customer = _customer(_id_in(row), row)
            if customer.id in found:
                raise CustomerUnreadable("the query gives more than one row for a customer")
            found[customer.id] = customer
        return found

    async def _rows(self, parameters: Mapping[str, object]) -> list[Mapping[str, Any]]:
        try:
            return await self._ask(parameters)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise DirectoryUnavailable(_reason(error)) from None
        except (SQLAlchemyError, OSError) as error:
            raise DirectoryUnavailable(_reason(error)) from None
        try:  # a pooled connection was broken, maybe by a restart of the database: retry once on a new one
            return await self._ask(parameters)
        except (SQLAlchemyError, OSError) as error:
            raise DirectoryUnavailable(_reason(error)) from None

    async def _ask(self, parameters: Mapping[str, object]) -> list[Mapping[str, Any]]:
        async with self._engine.connect() as connection:
            result = await connection.execute(self._statement, parameters)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []


def _id_in(row: Mapping[str, Any]) -> int:
    try:
        return int(row["id"])
    except KeyError:
        raise DirectoryUnavailable("a query for many customers must select their id") from None
    except (TypeError, ValueError):
        raise DirectoryUnavailable("the column id doesn't contain an integer") from None


def _customer(customer_id: int, row: Mapping[str, Any]) -> Customer:
    fields = {name: _text_of(name, value) for name, value in row.items() if name != "id"}
    return Customer(customer_id, fields)


def _text_of(column: str, value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case date() | time():
            return value.isoformat()
        case _ if isinstance(value, _WRITTEN):
            return str(value)
        case _:
            try:
                return field_text(column, value)
            except TypeError as error:
                raise CustomerUnreadable(f"the column {column} contains a value that is {error}") from None


def _reason(error: SQLAlchemyError | OSError) -> str:
    """Describe an error, mostly by its type: drivers' messages may quote rows."""
    cause: BaseException = error
    if isinstance(error, DBAPIError) and error.orig is not None:
        cause = error.orig.__cause__ or error.orig  # SQLAlchemy wraps the driver's errors
    if isinstance(cause, ssl.SSLCertVerificationError):
        problem = cause.verify_message
        return f"TLS with the database failed: {problem}; customers.tls.ca_file names the trusted authorities"
    if isinstance(cause, ssl.SSLError):
        return f"TLS with the database failed: {cause.reason or type(cause).__name__}"
    code = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None)
    if str(cause).startswith(("no such ", "near ")):  # SQLite quotes the query there
        code = str(cause)
    elif isinstance(cause, OSError) and cause.strerror:
        code = cause.strerror
    name = type(cause).__name__
    return f"the database answered with {name} ({code})" if code else f"the database failed with {name}"


def open_sql(options: SqlOptions, terms: Terms) -> SqlSource:
    """Open the source. Must be called within an asyncio loop; raises ConfigError."""
    if sniffio.current_async_library() != "asyncio":
        raise ConfigError(['customers.source: "sql" runs on asyncio only'])
    if problems := options.problems():
        raise ConfigError([f"customers.{problem}" for problem in problems])
    url = database_address(options)
    engine = create_async_engine(
        url,
        pool_size=terms.concurrency,
        max_overflow=0,
        pool_timeout=terms.timeout,
        isolation_level="AUTOCOMMIT",  # each look-up is one statement: no round trips around it
        hide_parameters=True,
    )
    _read_only(engine)
    connect_safely(engine, options)
    if (file := sqlite_file(options)) is not None:
        _look_first(engine, file)
    return SqlSource(options, engine)


def _read_only(engine: AsyncEngine) -> None:
    order = READ_ONLY.get(engine.dialect.name)

    def tell(connection: DBAPIConnection, _record: object) -> None:
        if order is not None:
            cursor = connection.cursor()
            cursor.execute(order)
            cursor.close()
            connection.commit()

    event.listen(engine.sync_engine, "connect", tell)


def _look_first(engine: AsyncEngine, file: Path) -> None:
    # A failed connection leaves a driver thread behind, which logs an error when the loop ends.
    def look(*_connection: object) -> None:
        with file.open("rb"):
            pass

    event.listen(engine.sync_engine, "do_connect", look)
