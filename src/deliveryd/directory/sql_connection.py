"""Connections of a database's driver: to addresses that were looked up before, and to nobody who isn't meant.

Drivers look names up in a pool of threads that they share, where one silent name server holds up all. Left to
themselves they try TLS, verify nothing, and without it tell the password to whoever answers.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from deliveryd.directory.sql_options import SqlOptions
from deliveryd.network.connection import by_turns, connect
from deliveryd.network.resolver import Address, Resolver

TLS_REFUSED = "it offers no TLS, and customers.allow_plain_text isn't set"


def connect_safely(engine: AsyncEngine, options: SqlOptions) -> None:
    """Have the engine's driver connect to addresses, over TLS as the options say."""
    resolver = Resolver()

    def made(
        dialect: Dialect, _record: object, given: Sequence[Any], named: Mapping[str, Any]
    ) -> DBAPIConnection | None:
        match dialect.driver:
            case "asyncpg":
                return _to_postgresql(dialect, resolver, tls_for(options, _hosts(named)), given, named)
            case "aiomysql" if not named.get("unix_socket"):
                host = str(named.get("host") or "localhost")
                return _to_mysql(dialect, resolver, tls_for(options, [host]), given, {**named, "host": host})
            case _:
                return None

    event.listen(engine.sync_engine, "do_connect", made)


def tls_for(options: SqlOptions, hosts: Sequence[str]) -> ssl.SSLContext | None:
    """TLS that verifies certificate and name; None for this computer, and where plain text is allowed.

    The files are read for each connection, of which there are few: they may have been replaced.
    """
    files = options.tls.files()
    is_here = bool(hosts) and all(map(_is_here, hosts))
    if options.allow_plain_text or (is_here and files.is_empty):
        return None
    return files.context()


def _hosts(named: Mapping[str, Any]) -> Sequence[str]:
    """The hosts of a PostgreSQL; none where the environment may name them."""
    host = named.get("host") or ()
    return [host] if isinstance(host, str) else list(host)


def _is_here(host: str) -> bool:
    """Whether a host is this computer: the folder of a socket, a loopback address."""
    if host.startswith("/") or host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _to_postgresql(
    dialect: Dialect,
    resolver: Resolver,
    tls: ssl.SSLContext | None,
    given: Sequence[Any],
    named: Mapping[str, Any],
) -> DBAPIConnection:
    options = {**named, "ssl": tls or False, "loop": AddressedLoop(resolver)}
    try:
        return dialect.connect(*given, **options)
    except ConnectionError as error:
        if "rejected SSL" in str(error):
            raise ConnectionError(errno.EPROTO, TLS_REFUSED) from None
        raise


def _to_mysql(
    dialect: Dialect,
    resolver: Resolver,
    tls: ssl.SSLContext | None,
    given: Sequence[Any],
    named: Mapping[str, Any],
) -> DBAPIConnection:
    """A connection to the first address that gives one. Raises the driver's error for the last one."""
    options = {**named, "local_infile": False}
    if tls is not None:
        from deliveryd.directory.mysql_tls import connect_over_tls  # noqa: PLC0415 - an optional package

        options |= {"ssl": tls, "async_creator_fn": partial(connect_over_tls, named["host"])}
    *others, last = by_turns(_looked_up(resolver, named["host"]))
    for address in others:
        try:
            return dialect.connect(*given, **{**options, "host": address.host})
        except dialect.loaded_dbapi.OperationalError:
            continue
    return dialect.connect(*given, **{**options, "host": last.host})


def _looked_up(resolver: Resolver, host: str) -> Sequence[Address]:
    addresses: Sequence[Address] = await_only(resolver.look_up(host))
    return addresses


class AddressedLoop:
    """The running event loop for asyncpg, except that `create_connection` is given sockets, not names.

    So asyncpg still knows the host's name, which TLS verifies.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._loop = asyncio.get_running_loop()
        self._resolver = resolver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, factory: Any, host: str, port: int, **options: Any) -> Any:
        """Connect as the event loop does."""
        if options.get("ssl"):
            options.setdefault("server_hostname", host)
        made = await connect(self._resolver, host, port)
        return await self._loop.create_connection(factory, sock=made, **options)
