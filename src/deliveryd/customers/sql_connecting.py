"""Connections of a database's driver, made to addresses that were looked up before.

Drivers look names up in a pool of threads that they share, where one silent name server holds up all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from deliveryd.network.connecting import by_turns, connect
from deliveryd.network.resolver import Address, Resolver

BY_ADDRESS = frozenset({"aiomysql", "asyncmy"})
"""Drivers that are given an address instead of the name. With TLS, which needs the name, they look it up."""


def connect_by_address(engine: AsyncEngine) -> None:
    """Have the engine's driver connect to addresses, as far as it lets itself be told."""
    resolver = Resolver()

    def made(
        dialect: Dialect, _record: object, given: Sequence[Any], named: Mapping[str, Any]
    ) -> DBAPIConnection | None:
        if dialect.driver == "asyncpg":
            return dialect.connect(*given, **named, loop=AddressedLoop(resolver))
        host = named.get("host")
        if dialect.driver in BY_ADDRESS and isinstance(host, str) and "ssl" not in named:
            return _first_answer(dialect, await_only(resolver.look_up(host)), given, named)
        return None

    event.listen(engine.sync_engine, "do_connect", made)


def _first_answer(
    dialect: Dialect, addresses: Sequence[Address], given: Sequence[Any], named: Mapping[str, Any]
) -> DBAPIConnection:
    """A connection to the first address that gives one. Raises the driver's error for the last one."""
    *others, last = by_turns(addresses)
    for address in others:
        try:
            return dialect.connect(*given, **{**named, "host": address.host})
        except dialect.loaded_dbapi.OperationalError:
            continue
    return dialect.connect(*given, **{**named, "host": last.host})


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
