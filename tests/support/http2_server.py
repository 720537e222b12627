"""A server that speaks HTTP/2 on a real socket, and does what a test asks for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes


class Http2Request:
    """A request as it arrived."""

    def __init__(self, connection: Http2Peer, number: int, headers: dict[str, str]) -> None:
        self.connection = connection
        self.number = number
        self.headers = headers
        self.body = b""

    def answer(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        """Answer the request as a whole."""
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        h2 = self.connection.h2
        h2.send_headers(self.number, [(":status", str(status)), *named], end_stream=not body)
        if body:
            h2.send_data(self.number, body, end_stream=True)
        self.connection.flush()

    def reset(self, code: ErrorCodes) -> None:
        """Reset the stream."""
        self.connection.h2.reset_stream(self.number, code)
        self.connection.flush()


class Http2Peer(asyncio.Protocol):
    """One connection of the server."""

    def __init__(self, server: Http2Server) -> None:
        self._server = server
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._requests: dict[int, Http2Request] = {}
        self.transport: asyncio.Transport | None = None
        self.is_silent = False
        self.lost = asyncio.Event()
        self.last = 1 << 31
        """The last stream that is processed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._server.connections.append(self)
        self.h2.initiate_connection()
        if self._server.streams is not None:
            self.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: self._server.streams})
        if self._server.window is not None:
            self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: self._server.window})
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.is_silent:
            return
        try:
            events = self.h2.receive_data(data)
        except ProtocolError:
            assert self.transport is not None
            self.transport.close()
            return
        for event in events:
            if isinstance(event, RequestReceived):
                headers = {str(name): str(value) for name, value in event.headers}
                request = self._requests[event.stream_id] = Http2Request(self, event.stream_id, headers)
                self._server.begin(request)
            elif isinstance(event, DataReceived):
                self._requests[event.stream_id].body += event.data
                if self._server.window is None:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                request = self._requests.pop(event.stream_id)
                self._server.seen.append(request)
                self._server.act(request)
        self.flush()

    def allow(self, streams: int) -> None:
        """Allow so many streams at a time from now on."""
        self.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: streams})
        self.flush()

    def grow(self, window: int) -> None:
        """Let streams have windows of so many bytes."""
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.flush()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.lost.set()

    def go_away(self, last: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Take no more streams; those above the last one weren't processed. Streams below may go on."""
        assert self.transport is not None
        self.last = last
        body = last.to_bytes(4, "big") + int(code).to_bytes(4, "big")
        self.flush()
        self.transport.write(len(body).to_bytes(3, "big") + bytes([7, 0, 0, 0, 0, 0]) + body)

    def flush(self) -> None:
        """Write what is to be written."""
        if self.transport is not None and not self.is_silent and (data := self.h2.data_to_send()):
            self.transport.write(data)

    def abort(self) -> None:
        """Break the connection off."""
        assert self.transport is not None
        self.transport.abort()


class Http2Server:
    """A server; `act` is called with each whole request, and `begin` when its head came.

    `streams` are allowed at a time, each with a `window` of so many bytes.
    """

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self.port = 0
        self.streams: int | None = None
        self.window: int | None = None
        self.begin: Callable[[Http2Request], None] = lambda _request: None
        self.connections: list[Http2Peer] = []
        self.seen: list[Http2Request] = []
        self.act: Callable[[Http2Request], None] = lambda request: request.answer()

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self._scheme}://localhost:{self.port}"


@asynccontextmanager
async def open_http2_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[Http2Server]:
    """Listen on a free port of 127.0.0.1 until the block ends."""
    server = Http2Server("https" if tls else "http")
    listener = await asyncio.get_running_loop().create_server(
        lambda: Http2Peer(server), "127.0.0.1", 0, ssl=tls
    )
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for connection in server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await listener.wait_closed()
