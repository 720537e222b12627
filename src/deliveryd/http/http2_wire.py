"""Sends requests over HTTP/2 (RFC 9113): many at a time on one connection, each on a stream of its own.

What the server didn't process for sure counts as not sent: streams that it refused, those above the last one
that it names when it goes away, and requests whose end wasn't written. Any other stream without a whole
answer is in doubt.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from deliveryd.errors import NotSent
from deliveryd.http.http2_connection import PROTOCOL, Http2Connection, Http2Stream
from deliveryd.http.wire import BeforeSend, Headers, Target, WireResponse
from deliveryd.network.connection import connect, not_connected, verified_by
from deliveryd.network.resolver import Resolver

_Origin = tuple[str, str, int, str | None]


class Http2Wire:
    """One connection to each origin. `tls_context` returns the context for https, of its own for this wire.

    `ca_key` is the configuration key that names the trusted authorities, for errors.
    """

    def __init__(self, tls_context: Callable[[], ssl.SSLContext], ca_key: str = "tls.ca_file") -> None:
        self._tls_context = tls_context
        self._ca_key = ca_key
        self._resolver = Resolver()
        self._loop = asyncio.get_running_loop()
        self._connections: dict[_Origin, Http2Connection] = {}
        self._connecting: dict[_Origin, asyncio.Lock] = {}
        self._open: set[Http2Connection] = set()
        self._closed = False

    async def exchange(
        self,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        max_body: int,
        check: BeforeSend | None = None,
    ) -> WireResponse:
        """Send a request and return the whole answer. Raises NotSent or OutcomeUnknown."""
        ends = self._loop.time() + deadline
        try:
            async with asyncio.timeout_at(ends):
                connection = await self._with_room(target)
        except TimeoutError:
            raise NotSent(
                f"no connection to {target.host}:{target.port}, or no room on it, within {deadline:g} s"
            ) from None
        stream = connection.send((method, target, headers, body), max_body, check)
        try:
            return await self._answer(connection, stream, ends, deadline)
        finally:
            if not stream.answer.done():
                connection.give_up(stream)

    async def _answer(
        self, connection: Http2Connection, stream: Http2Stream, ends: float, deadline: float
    ) -> WireResponse:
        """Wait for the answer; what has arrived by the deadline is read first, with as much time again."""
        await asyncio.wait([stream.answer], timeout=ends - self._loop.time())
        if not stream.answer.done():
            await asyncio.sleep(0)  # timers may come before what is to be read: uvloop's do
        latest = ends + deadline
        while not stream.answer.done() and connection.has_unread and self._loop.time() < latest:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if stream.answer.done():
            return stream.answer.result()
        raise stream.outcome(f"no whole answer within {deadline:g} s")

    async def _with_room(self, target: Target) -> Http2Connection:
        """Return a connection on which a stream may begin now. Raises NotSent."""
        origin = (*target[:3], target.address)
        while True:
            async with self._connecting.setdefault(origin, asyncio.Lock()):
                if self._closed:
                    raise NotSent("the client is closed")
                context = self._context(target)
                connection = self._connections.get(origin)
                if connection is not None and not await self._may_be_used(connection, context):
                    connection.retire()
                if connection is None or not connection.is_usable:
                    connection = self._connections[origin] = await self._connect(target, context)
            if connection.has_unread:  # it may be the server's end
                await asyncio.sleep(0)
            if await connection.room():
                return connection

    async def _may_be_used(self, connection: Http2Connection, context: ssl.SSLContext | None) -> bool:
        return connection.is_usable and connection.context is context and await connection.is_alive()

    def _context(self, target: Target) -> ssl.SSLContext | None:
        if target.scheme != "https":
            return None
        return verified_by(self._tls_context, target.host, target.port, self._ca_key)

    async def _connect(self, target: Target, context: ssl.SSLContext | None) -> Http2Connection:
        host, port = target.host, target.port
        connection = Http2Connection(self._loop, self._open, context)
        if context is not None:
            context.set_alpn_protocols([PROTOCOL])
        try:
            made = await connect(self._resolver, target.address or host, port)
            await self._loop.create_connection(
                lambda: connection, sock=made, ssl=context, server_hostname=host if context else None
            )
            await connection.begun()
        except OSError as error:
            connection.abandon()
            raise not_connected(host, port, error, self._ca_key) from None
        except BaseException:
            connection.abandon()
            raise
        if self._closed:
            connection.abandon()
            raise NotSent("the client is closed")
        return connection

    async def aclose(self) -> None:
        """Close all connections and wait until their sockets are closed; requests in progress fail."""
        self._closed = True
        closing = list(self._open)
        for connection in closing:
            connection.close()
        for connection in closing:
            await connection.closed.wait()
