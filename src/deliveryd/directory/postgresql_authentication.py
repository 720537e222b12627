"""What PostgreSQL receives of a password without TLS: nothing that reveals it to a listener.

asyncpg answers whatever a server asks for, also in plain text or by MD5, which is as good as that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

GIVES_AWAY = frozenset({3, 5})
"""Requests of authentication that ask for the password itself, or for its MD5."""

TLS_REFUSED = "the server offers no TLS, and customers.allow_plain_text isn't set"
PLAIN_REFUSED = (
    "the server asks for the password in a form that gives it away without TLS: have it ask by scram-sha-256"
    " (PostgreSQL) or mysql_native_password, or connect over TCP with customers.tls.ca_file"
)
UNPROVEN = (
    "the server doesn't prove that it has the password: have it ask by scram-sha-256, or leave out"
    " customers.password_file"
)

_OK = 0
_SASL_FINAL = 12
_HEADER = 5  # a letter, and the size of the rest: a number of four bytes that counts itself
_CODE = 4


class AuthenticationGuard(asyncio.Protocol):
    """Stands before asyncpg's protocol until the server takes queries, and ends a connection that asks so.

    `refused` is called then, with the reason. `must_prove`: the server has to show by SCRAM that it has the
    password, before it is believed.
    """

    def __init__(self, protected: Any, refused: Callable[[str], None], *, must_prove: bool) -> None:
        self.protected = protected
        self._refused = refused
        self._is_proven = not must_prove
        self._unread = bytearray()
        self._is_in = False
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Pass it on."""
        self._transport = transport
        self.protected.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self.protected.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self.protected.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self.protected.resume_writing()

    def eof_received(self) -> bool | None:
        """Pass it on."""
        closes_later: bool | None = self.protected.eof_received()
        return closes_later

    def data_received(self, data: bytes) -> None:
        """Look at the messages that begin in it, before the protocol can answer."""
        self._unread += data
        while len(self._unread) >= _HEADER:
            letter, size = self._unread[:1], int.from_bytes(self._unread[1:_HEADER], "big")
            if letter == b"R" and size >= 2 * _CODE and len(self._unread) < _HEADER + _CODE:
                break
            reason = (
                PLAIN_REFUSED if size < _CODE else self._refusal(letter, self._unread[_HEADER : 1 + size])
            )
            if reason is not None:
                self._refused(reason)
                self._transport.abort()
                return
            if letter == b"Z":
                self._transport.set_protocol(self.protected)
                break
            if len(self._unread) <= size:
                break
            del self._unread[: 1 + size]
        self.protected.data_received(data)

    def _refusal(self, letter: bytearray, begin: bytearray) -> str | None:
        """Return why asyncpg may not have a message, by its first bytes.

        It would believe a server that takes queries without OK, and answer requests that come after OK.
        """
        if letter == b"Z":
            return None if self._is_in else UNPROVEN
        if letter != b"R":
            return None
        code = int.from_bytes(begin[:_CODE], "big")
        if self._is_in or len(begin) < _CODE or code in GIVES_AWAY:
            return PLAIN_REFUSED
        if code == _SASL_FINAL:  # asyncpg ends a connection whose proof is wrong
            self._is_proven = True
        self._is_in = code == _OK
        return None if self._is_proven or not self._is_in else UNPROVEN
