"""A wire on asyncio: one Protocol for each connection.

It exists for speed: with one provider request per message, the HTTP client is the largest cost of all
(docs/decisions/0003-http-wire.md). A connection is reused only after a complete response that allows it; in
all other cases it is closed.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from deliveryd.errors import NotSent
from deliveryd.http.response_reader import BROKE, ResponseReader
from deliveryd.http.wire import (
    IDENTITY,
    IDLE_SECONDS,
    BeforeSend,
    Headers,
    Target,
    WireResponse,
    encode_request,
)
from deliveryd.network.connection import connect, not_connected, verified_by
from deliveryd.network.resolver import Resolver

Origin = tuple[str, str, int, ssl.SSLContext | None]
"""Scheme, host and port, and what TLS verifies: a renewed context has connections of its own."""


class AsyncioWire:
    """Sends requests over pooled connections. `tls_context` returns the context for an https request.

    `ca_key` is the configuration key that names the trusted authorities, for errors.
    """

    def __init__(
        self,
        tls_context: Callable[[], ssl.SSLContext],
        accept_encoding: str = IDENTITY,
        ca_key: str = "tls.ca_file",
    ) -> None:
        self._tls_context = tls_context
        self._accept = accept_encoding.encode("ascii")
        self._ca_key = ca_key
        self._resolver = Resolver()
        self._idle: defaultdict[Origin, deque[_Connection]] = defaultdict(deque)  # the longest idle one first
        self._open: set[_Connection] = set()
        self._busy: set[_Connection] = set()
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_at = (
            0.0  # when the timer fires: at the first deadline of the busy connections at the latest
        )
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None
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
        message = encode_request(method, target, headers, body, self._accept)
        context = None
        if target.scheme == "https":
            context = verified_by(self._tls_context, target.host, target.port, self._ca_key)
        origin = (*target[:3], context)
        connection = self._reuse(origin) or await self._connect(target, context, deadline)
        if self._loop.time() >= ends:  # the process may have been suspended meanwhile
            self._put_back(origin, connection)
            raise NotSent(f"no time left of {deadline:g} s to send the request")
        connection.ends, connection.deadline = ends, deadline
        self._busy.add(connection)
        if self._deadline is None or self._deadline_at > ends:
            self._set_deadline(ends)
        try:
            return await connection.request(message, max_body, check)
        finally:
            connection.waiter = None  # release the response, since the connection outlives it
            self._busy.discard(connection)
            self._put_back(origin, connection)

    def _set_deadline(self, ends: float) -> None:
        """Check the deadlines then. One timer serves all, since almost none is ever reached."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline, self._deadline_at = self._loop.call_at(ends, self._give_up_late), ends

    def _give_up_late(self) -> None:
        """End the requests past their deadline. Data in the socket is read first: the process may have been
        suspended since it arrived. A peer that never pauses gets as much time again.
        """
        self._deadline = None
        now = self._loop.time()
        late = [connection for connection in self._busy if connection.ends <= now]
        is_unread = [connection for connection in late if not connection.give_up_if_quiet(now)]
        coming = [connection.ends for connection in self._busy if connection.ends > now]
        if is_unread or coming:
            self._set_deadline(now if is_unread else min(coming))

    def _reuse(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin)
        oldest = self._loop.time() - IDLE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.idle_since > oldest and connection.quiet:
                return connection
            connection.close()
        return None

    def _put_back(self, origin: Origin, connection: _Connection) -> None:
        is_current = origin[3] is None or origin[3] is self._tls_context()
        if self._closed or not (connection.reusable and is_current):
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle[origin].append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_SECONDS, self._close_expired)

    def _close_expired(self) -> None:
        """Close connections that were idle for too long, also to origins no longer in use."""
        self._sweep = None
        oldest = self._loop.time() - IDLE_SECONDS
        for origin, idle in list(self._idle.items()):
            while idle and (idle[0].idle_since <= oldest or not idle[0].reusable):
                idle.popleft().close()
            if not idle:
                del self._idle[origin]
        if self._idle:
            longest = min(idle[0].idle_since for idle in self._idle.values())
            self._sweep = self._loop.call_at(longest + IDLE_SECONDS, self._close_expired)

    async def _connect(self, target: Target, context: ssl.SSLContext | None, deadline: float) -> _Connection:
        host, port = target.host, target.port
        connection = _Connection(self._loop, self._open)
        try:
            async with asyncio.timeout(deadline):
                made = await connect(self._resolver, target.address or host, port)
                with connection.unless_given_up():
                    await self._loop.create_connection(
                        lambda: connection,
                        sock=made,
                        ssl=context,
                        server_hostname=host if context is not None else None,
                    )
        except TimeoutError:
            raise NotSent(f"no connection to {host}:{port} within {deadline:g} s") from None
        except OSError as error:
            raise not_connected(host, port, error, self._ca_key) from None
        if self._closed:
            connection.close()
            raise NotSent("the client is closed")
        return connection

    async def aclose(self) -> None:
        """Close all connections and wait until their sockets are closed; requests in progress fail."""
        self._closed = True
        self._idle.clear()
        for timer in (self._sweep, self._deadline):
            if timer is not None:
                timer.cancel()
        closing = list(self._open)
        for connection in closing:
            connection.close()
        for connection in closing:
            await connection.closed.wait()


class _Connection(asyncio.Protocol):
    """One connection, with one request on it at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, register: set[_Connection]) -> None:
        self._loop = loop
        self._register = register
        self._transport: asyncio.Transport | None = None
        self.waiter: asyncio.Future[WireResponse] | None = None
        self._answer = ResponseReader()
        self._unread = select.poll()
        self.ends = self.deadline = 0.0
        self.idle_since = 0.0
        self.reusable = False
        self._read_until = 0.0  # when even data in the socket is no longer read; 0: the deadline is to come
        self.closed = asyncio.Event()

    @property
    def quiet(self) -> bool:
        """Whether the socket has nothing to read, such as the peer's close."""
        return self._transport is not None and not self._unread.poll(0)

    @contextmanager
    def unless_given_up(self) -> Iterator[None]:
        """Guard connecting: if the caller is cancelled, uvloop closes the socket without any call-back."""
        try:
            yield
        except BaseException:
            self._register.discard(self)
            self.closed.set()
            raise

    def request(
        self, message: bytes, max_body: int, check: BeforeSend | None
    ) -> asyncio.Future[WireResponse]:
        """Send a request; awaiting the complete response raises OutcomeUnknown. Raises NotSent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self.reusable = False
            raise NotSent("the connection was closed before the request")
        if check is not None:
            check()
        self.reusable = False
        self._read_until = 0.0
        self._answer.begin(max_body)
        self.waiter = waiter = self._loop.create_future()
        transport.write(message)
        return waiter

    def give_up_if_quiet(self, now: float) -> bool:
        """End the request past its deadline, unless data of a response can still be read."""
        if self.waiter is None or self.waiter.done():
            return True
        self._read_until = self._read_until or now + self.deadline
        if not self.quiet and now < self._read_until:
            return False
        self._answer.fail(f"no whole answer within {self.deadline:g} s")
        self._hand_over()
        return True

    def close(self) -> None:
        """Close the connection at once, without flushing."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _hand_over(self) -> None:
        """Give the answer's outcome, once there is one, to who waits for it."""
        answer, transport, waiter = self._answer, self._transport, self.waiter
        outcome, answer.outcome = answer.outcome, None
        if outcome is None or waiter is None or waiter.done():
            return
        if not isinstance(outcome, WireResponse):
            waiter.set_exception(outcome)
            self.close()
            return
        is_sent = transport is not None and not transport.get_write_buffer_size()
        self.reusable = is_sent and answer.allows_another
        waiter.set_result(outcome)

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._unread.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        waiter, answer = self.waiter, self._answer
        if waiter is None or waiter.done():
            self.close()  # no request is in progress
            return
        answer.feed(data)
        if not answer.is_awaited:
            self._hand_over()

    def eof_received(self) -> None:
        self._answer.end()
        self._hand_over()
        self.reusable = False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._register.discard(self)
        self._transport = None
        self._answer.fail(BROKE)
        self._hand_over()
        self.reusable = False
        self.closed.set()
