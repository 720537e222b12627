"""A wire on asyncio: llhttp's parser, one Protocol for each connection, one request on it at a time.

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
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import cast

import httptools

from deliveryd.errors import AnswerUnreadable, BrokenOff, NotSent, OutcomeUnknown, TooLarge, WireError
from deliveryd.http.content_coding import Decoder, Layers, Undecodable, decoder_of
from deliveryd.http.lenient_answer import LARGEST_HEAD, LenientAnswer
from deliveryd.http.wire import IDENTITY, BeforeSend, Headers, Target, WireResponse, add_header
from deliveryd.network.connection import connect, not_connected
from deliveryd.network.resolver import Resolver

IDLE_SECONDS = 4.0
"""Shorter than the idle time-out of common servers, so that the client closes first."""

MOST_READ_ANEW = 1 << 20
"""Most bytes of an answer in several pieces that are kept, to be read leniently if it isn't strict HTTP."""

LAST_LOOKS = 10_000
"""Most turns of the event loop after a deadline in which data in the socket is still read."""

Origin = tuple[str, str, int]


class AsyncioWire:
    """Sends requests over pooled connections. `tls_context` is called once, at the first https request.

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
        self._context: ssl.SSLContext | None = None
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
        origin = target[:3]
        connection = self._reuse(origin) or await self._connect(target, deadline)
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
            self._busy.discard(connection)
            self._put_back(origin, connection)

    def _set_deadline(self, ends: float) -> None:
        """Check the deadlines then. One timer serves all, since almost none is ever reached."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline, self._deadline_at = self._loop.call_at(ends, self._give_up_late), ends

    def _give_up_late(self) -> None:
        """End the requests past their deadline. Data in the socket is read first: the process may have been
        suspended since it arrived.
        """
        self._deadline = None
        now = self._loop.time()
        late = [connection for connection in self._busy if connection.ends <= now]
        is_unread = [connection for connection in late if not connection.give_up_if_quiet()]
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
        if self._closed or not connection.reusable:
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

    async def _connect(self, target: Target, deadline: float) -> _Connection:
        scheme, host, port = target[:3]
        connection = _Connection(self._loop, self._open)
        try:
            async with asyncio.timeout(deadline):
                made = await connect(self._resolver, target.address or host, port)
                with connection.unless_given_up():
                    await self._loop.create_connection(
                        lambda: connection,
                        sock=made,
                        ssl=self._tls(scheme),
                        server_hostname=host if scheme == "https" else None,
                    )
        except TimeoutError:
            raise NotSent(f"no connection to {host}:{port} within {deadline:g} s") from None
        except OSError as error:
            raise not_connected(host, port, error, self._ca_key) from None
        if self._closed:
            connection.close()
            raise NotSent("the client is closed")
        return connection

    def _tls(self, scheme: str) -> ssl.SSLContext | None:
        if scheme == "http":
            return None
        if self._context is None:
            self._context = self._tls_context()
        return self._context

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


def encode_request(method: str, target: Target, headers: Headers, body: bytes, accept: bytes) -> bytes:
    """Encode a request."""
    lines = [_head(method, target, accept), *map(b": ".join, headers)]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % len(body))
    lines.append(b"")
    lines.append(body)
    return b"\r\n".join(lines)


@lru_cache(maxsize=1024)
def _head(method: str, target: Target, accept: bytes) -> bytes:
    """Return the lines common to all requests to one target."""
    words = method.encode("ascii"), target.path, target.authority.encode("ascii"), accept
    return b"%b %b HTTP/1.1\r\nhost: %b\r\naccept-encoding: %b" % words


class _Connection(asyncio.Protocol):
    """One connection. The parser calls its `on_` methods while a response arrives."""

    def __init__(self, loop: asyncio.AbstractEventLoop, register: set[_Connection]) -> None:
        self._loop = loop
        self._register = register
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[WireResponse] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._unread = select.poll()
        self.ends = self.deadline = 0.0
        self.idle_since = 0.0
        self.reusable = False
        self._looks = 0
        self._raw: bytes | bytearray | None = b""  # what came of an answer so far; None: too much to keep
        self._lenient: LenientAnswer | None = None
        self.closed = asyncio.Event()
        self._start_answer()

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

    async def request(self, message: bytes, max_body: int, check: BeforeSend | None) -> WireResponse:
        """Send a request and wait for the complete response. Raises NotSent or OutcomeUnknown."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self.reusable = False
            raise NotSent("the connection was closed before the request")
        if check is not None:
            check()
        self.reusable = False
        self._max_body = max_body
        self._overhead = 0
        self._head_done = False
        self._raw = b""
        self._waiter = self._loop.create_future()
        transport.write(message)
        try:
            return await self._waiter
        finally:
            self._waiter = None  # release the response, since the connection outlives it

    def give_up_if_quiet(self) -> bool:
        """End the request past its deadline, unless data of a response can still be read."""
        if self._waiter is None or self._waiter.done():
            return True
        self._looks += 1
        if not self.quiet and self._looks < LAST_LOOKS:
            return False
        self._fail(self._unknown(f"no whole answer within {self.deadline:g} s"))
        return True

    def _keep(self, data: bytes) -> None:
        """Keep what came of an answer as long as its head or its chunks could turn out not to be strict."""
        if self._raw is None or (self._head_done and not self._is_chunked):
            return
        self._raw = self._raw or bytearray()
        self._raw += data
        if len(self._raw) > MOST_READ_ANEW:
            self._raw = None

    def _read_leniently(self, data: bytes) -> None:
        """Read the answer anew, leniently: what has come of it isn't strict HTTP."""
        if self._waiter is None or self._waiter.done():
            self.close()  # there is more than the answer
            return
        self._keep(data)
        raw, self._raw = self._raw, self._raw or b"?"
        if self._lenient is not None or raw is None:
            self._fail(self._unknown("the answer isn't HTTP"))
            return
        self._start_answer()
        self._parser = httptools.HttpResponseParser(self)
        self._lenient = LenientAnswer()
        try:
            self._feed_lenient(self._lenient, bytes(raw))
        except (httptools.HttpParserError, ValueError):
            self._fail(self._unknown("the answer isn't HTTP"))

    def _feed_lenient(self, answer: LenientAnswer, data: bytes) -> None:
        """Parse what follows in an answer that isn't strict. Raises HttpParserError or ValueError."""
        for piece in answer.feed(data):
            self._parser.feed_data(piece)
        if answer.is_over:
            self._finish()

    def close(self) -> None:
        """Close the connection at once, without flushing."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _start_answer(self) -> None:
        self._headers: dict[str, str] = {}
        self._body = bytearray()  # a list would need an object per chunk, even of one byte
        self._decoder: Decoder | Layers | None = None
        self._head_done = False

    def _unknown(self, reason: str, kind: type[BrokenOff] = BrokenOff) -> OutcomeUnknown:
        """Return the error for an incomplete response, with its status if the head was complete."""
        if not self._head_done or (status := self._parser.get_status_code()) < 200:
            return AnswerUnreadable(reason) if self._raw != b"" else OutcomeUnknown(reason)
        return kind(reason, status, self._headers, bytes(self._body))

    def _fail(self, error: WireError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self._body = bytearray()
        self.close()

    def _finish(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            if self._decoder is not None:
                try:
                    self._decoder.end()
                except Undecodable as error:
                    self._fail(self._unknown(str(error)))
                    return
            status = self._parser.get_status_code()
            self._waiter.set_result(WireResponse(status, self._headers, bytes(self._body)))
            self._body = bytearray()

    def _may_be_kept(self) -> bool:
        """Whether both sides are done with the exchange, and the peer keeps the connection open."""
        transport = self._transport
        unsent = transport is None or transport.get_write_buffer_size() > 0
        return not unsent and bool(self._parser.should_keep_alive())

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._unread.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.close()  # no request is in progress
            return
        self._overhead += len(data)
        try:
            if self._lenient is None:
                self._parser.feed_data(data)
            else:
                self._feed_lenient(self._lenient, data)
        except httptools.HttpParserUpgrade:
            self._keep(data)
            self._fail(self._unknown("the answer switches to another protocol"))
        except (httptools.HttpParserError, ValueError):
            self._read_leniently(data)
        else:
            if not self._waiter.done():
                self._keep(data)
        if self._overhead > LARGEST_HEAD and not self._waiter.done():
            self._fail(self._unknown(f"the answer's head is larger than {LARGEST_HEAD} bytes"))

    def eof_received(self) -> None:
        if self._waiter is not None and self._head_done:
            if self._ends_with_connection():
                self._finish()
            elif (self._raw or b"").endswith(b"\n0\r\n"):  # only the empty line behind the chunks is missing
                with suppress(httptools.HttpParserError):
                    self._parser.feed_data(b"\r\n")
        self.reusable = False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._register.discard(self)
        self._transport = None
        self._fail(self._unknown("the connection broke before the whole answer was there"))
        self.closed.set()

    @property
    def _is_chunked(self) -> bool:
        return "chunked" in self._headers.get("transfer-encoding", "").lower()

    def _ends_with_connection(self) -> bool:
        if self._lenient is not None and self._lenient.breaks_off:
            return False
        return "content-length" not in self._headers and not self._is_chunked

    # what the parser calls

    def on_message_begin(self) -> None:
        self._start_answer()
        if self._waiter is None or self._waiter.done():
            self.close()  # a second, unrequested response

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:  # otherwise a trailer
            add_header(self._headers, name.decode("latin-1").lower(), value.strip(b" \t").decode("latin-1"))

    def on_headers_complete(self) -> None:
        self._head_done = True
        if "content-encoding" in self._headers:
            try:
                self._decoder = decoder_of(self._headers["content-encoding"], self._max_body)
            except Undecodable as error:
                self._fail(self._unknown(str(error)))

    def on_body(self, data: bytes) -> None:
        self._overhead = 0
        if self._decoder is not None:
            self._decode(self._decoder, data)
        elif len(self._body) + len(data) > self._max_body:
            self._fail_too_large(data)
        else:
            self._body += data

    def _decode(self, decoder: Decoder | Layers, data: bytes) -> None:
        try:
            for piece in decoder.decode(data):
                if len(self._body) + len(piece) > self._max_body:
                    self._fail_too_large(piece)
                else:
                    self._body += piece
        except Undecodable as error:
            self._fail(self._unknown(str(error), error.kind))

    def _fail_too_large(self, data: bytes) -> None:
        self._body += data[: self._max_body - len(self._body)]
        self._fail(self._unknown(f"the answer is larger than {self._max_body} bytes", TooLarge))

    def on_message_complete(self) -> None:
        if (
            self._parser.get_status_code() < 200
        ):  # 100 Continue and other 1xx: the final response is still to come
            self._start_answer()
        elif self._waiter is not None and not self._waiter.done():
            self.reusable = self._may_be_kept()
            self._finish()
