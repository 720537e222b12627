"""A wire on asyncio: llhttp's parser, one Protocol for each connection, one request on it at a time.

It exists for its price: one provider request for each message makes the HTTP client the largest cost of the
whole line (docs/decisions/0003-http-wire.md). A connection goes back to the idle ones only after a whole answer
that allows it; everything else closes it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

import httptools

from deliveryd.errors import NotSent, OutcomeUnknown, WireError
from deliveryd.http.wire import Answer, Headers, Target

IDLE_SECONDS = 4.0  # shorter than what common servers keep idle connections for, so that they don't close first
MAX_HEAD = 64 * 1024

Origin = tuple[str, str, int]


class AsyncioWire:
    """Carries requests over kept connections. `tls_context` is called once, at the first https request."""

    def __init__(self, tls_context: Callable[[], ssl.SSLContext]) -> None:
        self._tls_context = tls_context
        self._context: ssl.SSLContext | None = None
        self._idle: dict[Origin, list[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._loop = asyncio.get_running_loop()

    async def exchange(
        self, method: str, target: Target, headers: Headers, body: bytes, *, deadline: float, max_body: int
    ) -> Answer:
        """Send a request and return the whole answer. Raises NotSent or OutcomeUnknown."""
        ends = self._loop.time() + deadline
        origin = target[:3]
        connection = self._reuse(origin) or await self._connect(origin, deadline)
        message = encode_request(method, target, headers, body)
        timer = self._loop.call_at(ends, connection.give_up, f"no whole answer within {deadline:g} s")
        try:
            answer = await connection.request(message, max_body)
        finally:
            timer.cancel()
            if connection.reusable:
                connection.idle_since = self._loop.time()
                self._idle.setdefault(origin, []).append(connection)
            else:
                connection.close()
        return answer

    def _reuse(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin)
        oldest = self._loop.time() - IDLE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin, deadline: float) -> _Connection:
        scheme, host, port = origin
        try:
            async with asyncio.timeout(deadline):
                _, protocol = await self._loop.create_connection(
                    lambda: _Connection(self._loop, self._open), host, port, ssl=self._tls(scheme)
                )
        except TimeoutError:
            raise NotSent(f"no connection to {host}:{port} within {deadline:g} s") from None
        except ssl.SSLError as error:
            raise NotSent(f"TLS with {host}:{port} failed: {error.reason or type(error).__name__}") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise NotSent(f"no connection to {host}:{port}: {reason}") from None
        return protocol

    def _tls(self, scheme: str) -> ssl.SSLContext | None:
        if scheme == "http":
            return None
        if self._context is None:
            self._context = self._tls_context()
        return self._context

    async def aclose(self) -> None:
        """Close all connections and wait until their sockets are gone."""
        self._idle.clear()
        closing = list(self._open)
        for connection in closing:
            connection.close()
        for connection in closing:
            await connection.closed.wait()


def encode_request(method: str, target: Target, headers: Headers, body: bytes) -> bytes:
    """The request as it stands on the wire."""
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n" % (
        method.encode("ascii"), target.path, target.authority.encode("ascii")
    )]  # fmt: skip
    for name, value in headers:
        if b"\r" in value or b"\n" in value or b"\0" in value:
            raise ValueError(f"a line break in the header {name.decode('ascii')}")
        lines.append(b"%b: %b\r\n" % (name, value))
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d\r\n" % len(body))
    lines.append(b"\r\n")
    lines.append(body)
    return b"".join(lines)


class _Connection(asyncio.Protocol):
    """One connection. The parser calls its `on_` methods while an answer comes in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, register: set[_Connection]) -> None:
        self._loop = loop
        self._register = register
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self.idle_since = 0.0
        self.reusable = False
        self.closed = asyncio.Event()

    async def request(self, message: bytes, max_body: int) -> Answer:
        """Write a request and wait for its whole answer. Raises NotSent or OutcomeUnknown."""
        transport = self._transport
        self.reusable = False
        if transport is None or transport.is_closing():
            raise NotSent("the connection was closed before the request")
        self._parser = httptools.HttpResponseParser(self)
        self._max_body = max_body
        self._head_left = MAX_HEAD
        self._start_answer()
        self._waiter = self._loop.create_future()
        transport.write(message)
        return await self._waiter

    def give_up(self, reason: str) -> None:
        """End the request under way, if any, as one whose outcome is unknown."""
        self._fail(OutcomeUnknown(reason))

    def close(self) -> None:
        """Close the connection at once, without waiting for what isn't written yet."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _start_answer(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._head_done = False

    def _fail(self, error: WireError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.close()

    def _finish(self, keep: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            status = self._parser.get_status_code()
            self._waiter.set_result(Answer(status, self._headers, b"".join(self._body)))
            self.reusable = keep

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.close()  # nothing was asked for
            return
        if not self._head_done:
            self._head_left -= len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(OutcomeUnknown("the answer asks for another protocol"))
        except httptools.HttpParserError:
            self._fail(OutcomeUnknown("the answer isn't HTTP"))
        else:
            if not self._head_done and self._head_left < 0:
                self._fail(OutcomeUnknown(f"the answer's head is larger than {MAX_HEAD} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._register.discard(self)
        if self._waiter is not None and not self._waiter.done():
            if self._head_done and self._ends_with_connection():
                self._finish(keep=False)
            else:
                self._fail(OutcomeUnknown("the connection broke before the whole answer was there"))
        self.reusable = False
        self._transport = None
        self.closed.set()

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self._headers and "transfer-encoding" not in self._headers

    # what the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("content-encoding", "identity") != "identity":
            self._fail(OutcomeUnknown("the answer is compressed, which wasn't asked for"))
        self._head_done = True

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_body:
            self._fail(OutcomeUnknown(f"the answer is larger than {self._max_body} bytes"))
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # 100 Continue and its like: the answer is still to come
            self._start_answer()
        else:
            self._finish(keep=bool(self._parser.should_keep_alive()))
