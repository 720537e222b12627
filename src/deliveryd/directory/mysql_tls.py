"""Connections of aiomysql that give no password away: over TLS, or by a digest of it alone.

By default aiomysql continues in plain text if the server offers no TLS, and sends the password in plain text
or encrypted for whatever key a server shows, if that asks for it. It joins packets of any size.
"""

from __future__ import annotations

import errno
from typing import Any

from aiomysql.connection import Connection
from pymysql.constants import CLIENT

from deliveryd.directory.sql_options import PLAIN_REFUSED, TLS_REFUSED

GIVE_AWAY = frozenset({"mysql_clear_password", "mysql_old_password"})
"""Methods by which whoever listens has the password, or soon; others that do so need the server's key."""


NOT_MYSQL = "the server sends what no MySQL sends before it takes queries"

_LARGEST = 30_000  # bytes of a packet before that


class _Bounded(Connection):  # type: ignore[misc]  # aiomysql has no types
    """A connection that takes small packets alone until the server takes queries."""

    _is_in = False

    async def _connect(self) -> None:
        await super()._connect()
        self._is_in = True

    async def _read_bytes(self, num_bytes: int) -> Any:
        if num_bytes > _LARGEST and not self._is_in:
            raise ConnectionError(errno.EPROTO, NOT_MYSQL)
        return await super()._read_bytes(num_bytes)


class TlsConnection(_Bounded):
    """A connection to an IP address whose TLS verifies the host name."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(**options)
        self._name = name

    async def _request_authentication(self) -> None:
        if not self.server_capabilities & CLIENT.SSL:
            raise ConnectionError(errno.EPROTO, TLS_REFUSED)
        self._host = self._name  # connected by address; TLS verifies the name
        await super()._request_authentication()


async def connect_over_tls(name: str, **options: Any) -> TlsConnection:
    """Connect as `aiomysql.connect` does; `options` have a `host` to connect to, and `ssl`."""
    connection = TlsConnection(name, **options)
    await connection._connect()  # noqa: SLF001 - what aiomysql.connect does
    return connection


class PlainConnection(_Bounded):
    """A connection without TLS: nothing proves whose key a server shows, so none is used.

    aiomysql would trust whoever listens on a socket of the file system with the password itself.
    """

    @property
    def _secure(self) -> bool:
        return False

    @_secure.setter
    def _secure(self, _is_so: bool) -> None:
        """Leave it so."""

    @property
    def server_public_key(self) -> None:
        """None."""
        return

    @server_public_key.setter
    def server_public_key(self, key: bytes | None) -> None:
        if key is not None:
            raise _refused()

    async def _request_authentication(self) -> None:
        if not self.server_capabilities & CLIENT.PLUGIN_AUTH or self._server_auth_plugin in GIVE_AWAY:
            raise _refused()
        await super()._request_authentication()

    async def _process_auth(self, plugin_name: bytes, auth_packet: Any) -> Any:
        if plugin_name.decode("latin1") in GIVE_AWAY:
            raise _refused()
        return await super()._process_auth(plugin_name, auth_packet)


async def connect_without_tls(**options: Any) -> PlainConnection:
    """Connect as `aiomysql.connect` does."""
    connection = PlainConnection(**options)
    await connection._connect()  # noqa: SLF001 - as above
    return connection


def _refused() -> ConnectionError:
    return ConnectionError(errno.EPROTO, PLAIN_REFUSED)
