"""Connections of aiomysql that require TLS.

By default aiomysql continues in plain text, and sends the password, if the server offers no TLS.
"""

from __future__ import annotations

import errno
from typing import Any

from aiomysql.connection import Connection
from pymysql.constants import CLIENT

from deliveryd.directory.sql_connection import TLS_REFUSED


class TlsConnection(Connection):  # type: ignore[misc]  # aiomysql has no types
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
