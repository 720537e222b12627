"""A connection of HTTP/2 (RFC 9113): its streams, its windows, and what became of each request."""

from __future__ import annotations

import asyncio
import re
import select
import ssl
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes

from deliveryd.errors import BrokenOff, NotSent, OutcomeUnknown, TooLarge, TooLate
from deliveryd.http.wire import BeforeSend, Headers, Target, WireResponse, add_header

PROTOCOL = "h2"
"""The name of HTTP/2 in TLS (RFC 9113, 3.2)."""

QUIET_SECONDS = 10.0
"""Seconds without a byte from the server after which a ping has to show that it is there."""

PING_SECONDS = 2.0
"""Seconds within which a ping has to be answered; without an answer another connection is made."""

_GOAWAY = 7
_FRAME_HEADER = 9
_LARGEST_FRAME = 1 << 14
_STATUS = re.compile(rb"[1-5][0-9]{2}")
_NOT_FOR_STREAMS = frozenset(
    {b"host", b"te", b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
"""Headers that streams don't have (RFC 9113, 8.2.2)."""

_BROKE = "the connection broke before a whole answer came"

Http2Request = tuple[str, Target, Headers, bytes]


class Http2Stream:
    """One request, and what came of its answer."""

    def __init__(
        self,
        number: int,
        body: bytes,
        max_body: int,
        answer: asyncio.Future[WireResponse],
        check: BeforeSend | None,
    ) -> None:
        self.number = number
        self.check = check
        self.unsent = body
        self.is_whole = False  # whether the end of the request was written
        self.answer = answer
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.max_body = max_body

    def outcome(self, reason: str) -> NotSent | OutcomeUnknown:
        """The error for a request without a whole answer, with the head of the answer if it came."""
        if self.status:
            return BrokenOff(reason, self.status, self.headers, bytes(self.body))
        return OutcomeUnknown(reason) if self.is_whole else NotSent(reason)

    def unprocessed(self, reason: str) -> NotSent | OutcomeUnknown:
        """The error for a request that the server says it didn't process; unless it began to answer it."""
        return self.outcome(reason) if self.status else NotSent(reason)


class Http2Connection(asyncio.Protocol):
    """One connection, with as many requests at a time as the server allows."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        register: set[Http2Connection],
        context: ssl.SSLContext | None,
    ) -> None:
        self._loop = loop
        self._register = register
        self.context = context
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()  # less than a frame
        self._streams: dict[int, Http2Stream] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()  # for a stream to end, or for more to be allowed
        self._woken = 0  # those of them whose turn it is
        self._has_settings = loop.create_future()
        self._heard_at = self._pinged_at = loop.time()
        self._heard = asyncio.Event()
        self._unread = select.poll()
        self._reason = _BROKE
        self.is_usable = True
        self.closed = asyncio.Event()

    # before a request

    async def begun(self) -> None:
        """Wait for the server's settings. Raises NotSent if it doesn't speak HTTP/2."""
        await self._has_settings

    @property
    def has_unread(self) -> bool:
        """Whether the socket has something to read, such as an answer or the server's close."""
        return self._transport is not None and bool(self._unread.poll(0))

    async def is_alive(self) -> bool:
        """Whether the server was heard of lately, or answers a ping in time, whoever waits for it."""
        now = self._loop.time()
        if now - self._heard_at < QUIET_SECONDS:
            return True
        if self._pinged_at <= self._heard_at:
            self._pinged_at = now
            self._heard.clear()
            self._h2.ping(b"deliverd")
            self._flush()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._pinged_at + PING_SECONDS):
                await self._heard.wait()
        return self.is_usable and self._heard.is_set()

    async def room(self) -> bool:
        """Wait until a stream may begin, in the order of coming; False: none may any more."""
        is_new, is_full = True, self._is_full(self._woken)
        while self.is_usable and is_full:
            waited = self._loop.create_future()
            if is_new:
                self._waiting.append(waited)
            else:
                self._waiting.appendleft(waited)
            is_new = False
            try:
                await waited
            except asyncio.CancelledError:
                if waited.done() and not waited.cancelled():
                    self._woken -= 1
                    self._wake(1)  # its turn is another's
                raise
            self._woken -= 1
            is_full = self._is_full(0)
        return self.is_usable

    def _is_full(self, others: int) -> bool:
        return len(self._streams) + others >= self._h2.remote_settings.max_concurrent_streams

    # a request

    def send(self, request: Http2Request, max_body: int, check: BeforeSend | None) -> Http2Stream:
        """Begin a request. Raises NotSent, and what `check` raises before anything is written."""
        if check is not None:
            try:
                check()
            except BaseException:
                self._wake(1)
                raise
        method, target, headers, body = request
        head = [
            (b":method", method.encode("ascii")),
            (b":scheme", target.scheme.encode("ascii")),
            (b":authority", target.authority.encode("ascii")),
            (b":path", target.path),
            *((name.lower(), value) for name, value in headers if name.lower() not in _NOT_FOR_STREAMS),
            (b"accept-encoding", b"identity"),
            (b"content-length", b"%d" % len(body)),
        ]
        try:
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, head, end_stream=not body)
        except H2Error:
            self.retire()
            raise NotSent("the connection takes no more requests") from None
        stream = Http2Stream(number, body, max_body, self._loop.create_future(), check)
        stream.is_whole = not body
        self._streams[number] = stream
        self._write(stream)
        self._flush()
        return stream

    def _write(self, stream: Http2Stream) -> None:
        """Write as much of a request as the server's windows allow."""
        try:
            while stream.unsent:
                room = min(
                    self._h2.local_flow_control_window(stream.number), self._h2.max_outbound_frame_size
                )
                if room <= 0:
                    return
                part, rest = stream.unsent[:room], stream.unsent[room:]
                self._h2.send_data(stream.number, part, end_stream=not rest)
                stream.unsent, stream.is_whole = rest, not rest
        except H2Error:  # it was reset: its own event follows
            return

    def _write_on(self) -> None:
        """Go on with the requests that waited for the server's windows, unless it is too late for them."""
        for stream in list(self._streams.values()):
            if stream.unsent and stream.check is not None:
                try:
                    stream.check()
                except TooLate as error:
                    self._cancel(stream)
                    self._end(stream, error)
                    continue
            self._write(stream)

    def _cancel(self, stream: Http2Stream) -> None:
        with suppress(H2Error):
            self._h2.reset_stream(stream.number, ErrorCodes.CANCEL)

    def give_up(self, stream: Http2Stream) -> None:
        """Cancel a request. Others that wait on a silent connection use another one from now on."""
        if self._streams.pop(stream.number, None) is not None and self._transport is not None:
            self._cancel(stream)
            self._flush()
        self._wake(1)
        if not self.is_usable or self._loop.time() - self._heard_at >= QUIET_SECONDS / 2:
            self.retire()

    def retire(self) -> None:
        """Begin no more requests; close when the last one has ended."""
        self.is_usable = False
        self._wake(len(self._waiting))
        if not self._streams:
            self.close()

    def close(self) -> None:
        """Close the connection at once, without flushing."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()
        else:
            self.closed.set()

    def abandon(self) -> None:
        """Close a connection that didn't come about: the loop may call nothing more on it."""
        self.close()
        self._has_settings.cancel()
        self._register.discard(self)
        self.closed.set()

    def _wake(self, count: int) -> None:
        while count and self._waiting:
            waited = self._waiting.popleft()
            if not waited.done():
                waited.set_result(None)
                self._woken += 1
                count -= 1

    def _flush(self) -> None:
        if self._transport is not None and (data := self._h2.data_to_send()):
            self._transport.write(data)

    # an answer

    def _end(self, stream: Http2Stream, outcome: WireResponse | Exception) -> None:
        if self._streams.pop(stream.number, None) is None:
            return
        if not stream.answer.done():
            if isinstance(outcome, WireResponse):
                stream.answer.set_result(outcome)
            else:
                stream.answer.set_exception(outcome)
        self._wake(1)
        if not self.is_usable and not self._streams:
            self.close()

    def _fail(self, stream: Http2Stream, reason: str) -> None:
        """End a request without a whole answer."""
        self._end(stream, stream.outcome(reason))

    def _handle(self, event: Event) -> None:
        match event:
            case RemoteSettingsChanged():
                if not self._has_settings.done():
                    self._has_settings.set_result(None)
                self._wake(len(self._waiting))
                self._write_on()
            case WindowUpdated():
                self._write_on()
            case DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        number = getattr(event, "stream_id", None)
        if number and (about := self._streams.get(number)) is not None:
            self._answered(about, event)

    def _answered(self, stream: Http2Stream, event: Event) -> None:
        match event:
            case ResponseReceived():
                self._begin_answer(stream, event.headers)
            case DataReceived():
                self._add(stream, event.data)
            case StreamEnded():
                if not stream.is_whole:
                    self._cancel(stream)
                self._end(stream, _whole(stream))
            case StreamReset() if event.error_code == ErrorCodes.REFUSED_STREAM:
                self._end(stream, stream.unprocessed("the server refused the stream before it processed it"))
            case StreamReset():
                self._fail(stream, f"the server reset the stream ({_named(event.error_code)})")

    def _begin_answer(self, stream: Http2Stream, headers: Iterable[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            if name != b":status":
                add_header(stream.headers, name.decode("latin-1"), value.decode("latin-1"))
            elif _STATUS.fullmatch(value):
                stream.status = int(value)
        if not stream.status:
            self._cancel(stream)
            self._fail(stream, "the answer has no status")

    def _add(self, stream: Http2Stream, data: bytes) -> None:
        stream.body += data
        if len(stream.body) > stream.max_body:
            reason = f"the answer has more than {stream.max_body} bytes"
            error = TooLarge(reason, stream.status, stream.headers, bytes(stream.body[: stream.max_body]))
            self._cancel(stream)
            self._end(stream, error)

    def _going_away(self, last: int, code: int) -> None:
        """The server takes no more streams; those above the last one that it names weren't processed."""
        self.is_usable = False
        reason = f"the server goes away ({_named(code)})"
        for stream in [each for each in self._streams.values() if each.number > last]:
            self._end(stream, stream.unprocessed(f"{reason} and didn't process it"))
        self._reason = reason
        self.retire()

    def _frames(self) -> bytes:
        """Take all whole frames but GOAWAY, after which the library would take no answer any more."""
        taken = bytearray()
        at, data = 0, self._received
        while len(data) - at >= _FRAME_HEADER:
            length = int.from_bytes(data[at : at + 3], "big")
            if length > _LARGEST_FRAME:
                raise H2Error("a frame is larger than was allowed")
            end = at + _FRAME_HEADER + length
            if len(data) < end:
                break
            frame = data[at:end]
            if frame[3] == _GOAWAY and length >= 8:
                last = int.from_bytes(frame[9:13], "big") & 0x7FFFFFFF
                self._going_away(last, int.from_bytes(frame[13:17], "big"))
            else:
                taken += frame
            at = end
        del data[:at]
        return bytes(taken)

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._unread.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._register.add(self)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != PROTOCOL:
            self._has_settings.set_exception(NotSent("the server doesn't speak HTTP/2"))
            self.close()
            return
        self._h2.initiate_connection()
        self._h2.update_settings({SettingCodes.ENABLE_PUSH: 0})
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._received += data
        try:
            for event in self._h2.receive_data(self._frames()):
                self._handle(event)
        except (H2Error, ValueError):
            self._reason = "the server's answer isn't HTTP/2"
            self._flush()
            self.close()
            return
        self._heard.set()
        self._flush()

    def eof_received(self) -> None:
        self.is_usable = False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._register.discard(self)
        self._transport = None
        self.is_usable = False
        if not self._has_settings.done():
            self._has_settings.set_exception(
                NotSent("the connection was closed before the server's settings")
            )
        for stream in list(self._streams.values()):
            self._fail(stream, self._reason)
        self._wake(len(self._waiting))
        self._heard.set()
        self.closed.set()


def _whole(stream: Http2Stream) -> WireResponse | BrokenOff:
    """The answer, which has to be as it was asked for: not encoded."""
    coding = stream.headers.get("content-encoding", "identity")
    if coding.lower() not in ("", "identity"):
        return BrokenOff(
            f"the answer is encoded ({coding[:20]!a})", stream.status, stream.headers, bytes(stream.body)
        )
    return WireResponse(stream.status, stream.headers, bytes(stream.body))


def _named(code: int) -> str:
    with suppress(ValueError):
        return ErrorCodes(code).name
    return f"code {code}"
