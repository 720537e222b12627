"""Connections of database drivers: to resolved addresses, and with verified TLS.

Drivers resolve names in a shared pool of threads, where one silent name server delays all. By default they
try TLS without verification, and send the password in plain text if there is none: asyncpg answers whatever
a server asks for, also in plain text or by MD5, which is as good as that.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from deliveryd.directory.sql_options import PLAIN_REFUSED, TLS_REFUSED, SqlOptions
from deliveryd.network.address import Address
from deliveryd.network.connection import by_turns, connect
from deliveryd.network.resolver import Resolver

GIVES_AWAY = frozenset({3, 5})
"""Requests of authentication that ask for the password itself, or for its MD5."""

NOT_POSTGRESQL = "the server sends what no PostgreSQL sends before it takes queries"

UNPROVEN = (
    "the server doesn't prove that it has the password: have it ask by scram-sha-256, or leave out"
    " customers.password_file"
)

TOO_MUCH_WORK = (
    "the server asks for more than 100,000 iterations of SCRAM, during which all else would stand:"
    " lower its scram_iterations, and set the password again"
)

_OK, _SASL, _SASL_CONTINUE, _SASL_FINAL = 0, 10, 11, 12
_FOLLOWS = {_OK: (), _SASL: (_SASL_CONTINUE,), _SASL_CONTINUE: (_SASL_FINAL,), _SASL_FINAL: (_OK,)}
"""Requests of authentication that may follow each: any other one, or another order, crashes asyncpg."""

_CHALLENGE = re.compile(rb"r=[^,]+,s=[^,]+,i=([0-9]{1,10})")
_MOST_ITERATIONS = 100_000
_MOST_MESSAGES = 1000  # before it takes queries
_HEADER = 5  # a letter, and the size of the rest: a number of four bytes that counts itself
_CODE = 4
_LARGEST = 30_000  # bytes of a message; libpq accepts no larger error either
_BEFORE_QUERIES = b"RSKNEZv"
"""Authentication, parameters, the key to cancel, notices, an error, ready, another protocol version."""


class AuthenticationGuard:
    """Stands before asyncpg's protocol until the server takes queries, and ends a connection that asks so.

    `refused` is called then, with the reason. `must_prove`: the server has to show by SCRAM that it has the
    password, before it is believed. What else is called passes through.
    """

    def __init__(self, protected: Any, refused: Callable[[str], None], *, must_prove: bool) -> None:
        self.protected = protected
        self._refused = refused
        self._is_proven = not must_prove
        self._unread = bytearray()
        self._messages = 0
        self._may_follow: Sequence[int] = (_OK, _SASL)
        self._transport: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.protected, name)

    def connection_made(self, transport: Any) -> None:
        """Keep the transport, to end the connection."""
        self._transport = transport
        self.protected.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on each message when all of it has arrived and was examined.

        asyncpg passes over a message whose size it reads as negative, and answers what follows.
        """
        self._unread += data
        while len(self._unread) >= _HEADER:
            letter, end = self._unread[:1], 1 + int.from_bytes(self._unread[1:_HEADER], "big")
            is_one = letter in _BEFORE_QUERIES and _HEADER <= end <= _LARGEST
            if is_one and len(self._unread) < end:
                return
            message = bytes(self._unread[:end])
            self._messages += 1
            is_one = is_one and self._messages <= _MOST_MESSAGES
            reason = self._refusal(letter, message[_HEADER:]) if is_one else NOT_POSTGRESQL
            if reason is not None:
                self._refused(reason)
                self._transport.abort()
                return
            if letter == b"Z":
                self._transport.set_protocol(self.protected)
                self.protected.data_received(bytes(self._unread))
                return
            del self._unread[:end]
            self.protected.data_received(message)

    def _refusal(self, letter: bytearray, content: bytes) -> str | None:
        """Return why asyncpg may not have a message.

        It would believe a server that takes queries without OK, and answer requests that come after OK.
        """
        if letter == b"Z":
            return UNPROVEN if self._may_follow else None
        if letter != b"R":
            return None
        code = int.from_bytes(content[:_CODE], "big")
        if code in GIVES_AWAY or len(content) < _CODE:
            return PLAIN_REFUSED
        if code == _OK and not self._is_proven and self._may_follow:
            return UNPROVEN
        if code not in self._may_follow:
            return NOT_POSTGRESQL
        self._may_follow = _FOLLOWS[code]
        if code == _SASL_FINAL:  # asyncpg ends a connection whose proof is wrong
            self._is_proven = True
        return self._flaw(content[_CODE:]) if code == _SASL_CONTINUE else None

    @staticmethod
    def _flaw(challenge: bytes) -> str | None:
        """Return why a challenge of SCRAM can't be answered: asyncpg computes it in the event loop."""
        found = _CHALLENGE.fullmatch(challenge)
        if found is None:
            return NOT_POSTGRESQL
        return TOO_MUCH_WORK if int(found[1]) > _MOST_ITERATIONS else None


def connect_safely(engine: AsyncEngine, options: SqlOptions) -> None:
    """Make the engine's driver connect to resolved addresses, with TLS as configured."""
    resolver = Resolver()

    def made(
        dialect: Dialect, _record: object, given: Sequence[Any], named: Mapping[str, Any]
    ) -> DBAPIConnection | None:
        match dialect.driver:
            case "asyncpg":
                return _to_postgresql(dialect, resolver, tls_for(options, _hosts(named)), given, named)
            case "aiomysql" if named.get("unix_socket"):
                return dialect.connect(*given, **named, **_over_a_socket())
            case "aiomysql":
                host = str(named.get("host") or "localhost")
                return _to_mysql(dialect, resolver, tls_for(options, [host]), given, {**named, "host": host})
            case _:
                return None

    event.listen(engine.sync_engine, "do_connect", made)


def tls_for(options: SqlOptions, hosts: Sequence[str]) -> ssl.SSLContext | None:
    """Return a TLS context that verifies certificate and name; None for this machine or allowed plain text.

    The files are read for each of the few connections, since they may have been replaced.
    """
    files = options.tls.files()
    is_here = bool(hosts) and all(map(_is_here, hosts))
    if options.allow_plain_text or (is_here and files.is_empty):
        return None
    return files.context()


def _hosts(named: Mapping[str, Any]) -> Sequence[str]:
    """Return the hosts of a PostgreSQL URL; none if the environment may set them."""
    host = named.get("host") or ()
    return [host] if isinstance(host, str) else list(host)


def _is_here(host: str) -> bool:
    """Whether a host is this machine: the folder of a socket, or a loopback address."""
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
    has_password = named.get("password") is not None
    loop = GuardedLoop(resolver, is_verified=tls is not None, must_prove=has_password)
    try:
        return dialect.connect(*given, **{**named, "ssl": tls or False, "loop": loop})
    except ConnectionError as error:
        if "rejected SSL" in str(error):
            raise ConnectionError(errno.EPROTO, TLS_REFUSED) from None
        raise
    finally:
        if loop.refusal is not None:
            raise ConnectionError(errno.EPROTO, loop.refusal) from None


def _to_mysql(
    dialect: Dialect,
    resolver: Resolver,
    tls: ssl.SSLContext | None,
    given: Sequence[Any],
    named: Mapping[str, Any],
) -> DBAPIConnection:
    """Connect to the first address that accepts. Raises the driver's error for the last one."""
    from deliveryd.directory import mysql_tls  # noqa: PLC0415 - an optional package

    options = {**named, "local_infile": False}
    if tls is not None:
        options |= {"ssl": tls, "async_creator_fn": partial(mysql_tls.connect_over_tls, named["host"])}
    else:
        options |= {"async_creator_fn": mysql_tls.connect_without_tls}
    *others, last = by_turns(_looked_up(resolver, named["host"]))
    for address in others:
        try:
            return dialect.connect(*given, **{**options, "host": address.host})
        except dialect.loaded_dbapi.OperationalError:
            continue
    return dialect.connect(*given, **{**options, "host": last.host})


def _over_a_socket() -> Mapping[str, Any]:
    """Options of aiomysql, which has no TLS there."""
    from deliveryd.directory import mysql_tls  # noqa: PLC0415 - as above

    return {"local_infile": False, "async_creator_fn": mysql_tls.connect_without_tls}


def _looked_up(resolver: Resolver, host: str) -> Sequence[Address]:
    addresses: Sequence[Address] = await_only(resolver.look_up(host))
    return addresses


class GuardedLoop:
    """The running event loop for asyncpg: its methods resolve names themselves, and guard the password.

    asyncpg still has the host's name, which TLS verifies. `is_verified`: it does so over TCP; there is none
    over sockets of the file system. For `must_prove` and the others see `AuthenticationGuard`. `refusal`: why
    the server was refused.
    """

    refusal: str | None = None

    def __init__(self, resolver: Resolver, *, is_verified: bool, must_prove: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._resolver = resolver
        self._is_verified = is_verified
        self._must_prove = must_prove

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, factory: Any, host: str, port: int, **options: Any) -> Any:
        """Connect like the event loop's method."""
        if options.get("ssl"):
            options.setdefault("server_hostname", host)
        made = await connect(self._resolver, host, port)
        if self._is_verified:
            return await self._loop.create_connection(factory, sock=made, **options)
        guarded = await self._loop.create_connection(self._guarded(factory), sock=made, **options)
        return guarded[0], guarded[1].protected

    async def create_unix_connection(self, factory: Any, path: str, **options: Any) -> Any:
        """Connect like the event loop's method."""
        made = await self._loop.create_unix_connection(self._guarded(factory), path, **options)
        return made[0], made[1].protected

    def _guarded(self, factory: Any) -> Callable[[], Any]:
        return lambda: AuthenticationGuard(factory(), self._refuse, must_prove=self._must_prove)

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
