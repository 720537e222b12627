"""One small, bounded HTTP server for an ASGI application, embedded in the worker's own event loop.

It runs on asyncio only, like the uvicorn below it, and leaves signals to the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import anyio
import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_CONNECTIONS = 200
_LONGEST_HEAD = 16 * 1024
_MOST_AHEAD = 32
_IDLE_SECONDS = 5
_PATIENCE = 15.0
_FAREWELL_SECONDS = 1


async def serve(app: ASGIApp, bound: socket.socket, stop: anyio.Event) -> None:
    """Answer requests on `bound` until `stop` is set, then let requests under way finish for a second.

    The socket and all connections are closed in the end, also when this call is cancelled.
    """
    server = _Server(_config(app), stop)
    try:
        await server.serve([bound])
    finally:
        server.close(bound)


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_ImpatientProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # what a stranger sends in must not fill the log
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Those that were parted from are still among them for a turn.
        limit_concurrency=2 * _MOST_CONNECTIONS,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_FAREWELL_SECONDS,
    )


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, ended by an event instead of by polling a flag."""

    def __init__(self, config: uvicorn.Config, stop: anyio.Event) -> None:
        super().__init__(config)
        self._stop = stop
        self.servers = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not self._stop.is_set():
            await self.on_tick(0)  # renews the Date header
            with anyio.move_on_after(1):
                await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:  # else it would only pause
            await super().shutdown(sockets)

    def close(self, bound: socket.socket) -> None:
        """Close at once whatever is still open."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
        bound.close()


class _ImpatientProtocol(HttpToolsProtocol):
    """Gives every request a limited time, from connecting or from the answer before to its own answer.

    Without it, clients that send or read nothing would occupy all places for ever. It bounds as well what the
    parser, which costs far less than h11, would collect without end: heads, and requests before their turn.
    """

    _patience: asyncio.TimerHandle | None = None
    _collected = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = _Parser(self)
        self._watch()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._patience is not None:
            self._patience.cancel()

    def data_received(self, data: bytes) -> None:
        self._collected += len(data)
        super().data_received(data)
        if self._collected > _LONGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MOST_AHEAD:
            raise ValueError("too many requests before their turn")  # it is answered like any malformed one
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._collected = 0
        if not self._is_offer():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._collected = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._collected = 0
        if not self._is_offer():
            super().on_message_complete()

    def pass_over(self, rest: bytes) -> None:
        """Read a request again without its offer of another protocol, and go on with what came behind."""
        line = b"%b %b HTTP/%b" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        kept = (b"%b: %b" % header for header in self.headers if header[0] != b"upgrade")
        self.parser = _Parser(self)
        self.parser.feed_data(b"\r\n".join([line, *kept, b"", rest]))

    def _is_offer(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _make_room(self) -> None:
        """Part from whoever has been silent for longest when there are too many: each has a file open."""
        all_of_them = (other for other in self.connections if isinstance(other, _ImpatientProtocol))
        there = [other for other in all_of_them if not other.transport.is_closing()]
        silent = [other for other in there if other.cycle is None or other.cycle.response_complete]
        if len(there) > _MOST_CONNECTIONS and silent:
            min(silent, key=_ImpatientProtocol.ends).transport.abort()

    def ends(self) -> float:
        """When this connection's time is up."""
        return self._patience.when() if self._patience is not None else 0.0

    def _watch(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self.loop.call_later(_PATIENCE, self.transport.abort)


class _Parser(httptools.HttpRequestParser):
    """Passes over offers of another protocol, as every server may (RFC 9110, 7.8).

    The parser by itself takes what is offered for agreed upon, and the body for no part of the request. But
    clients that would rather speak HTTP/2 offer it with a report that they want to be rid of.
    """

    def __init__(self, protocol: _ImpatientProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self.get_method() == b"CONNECT":
                raise
            self._protocol.pass_over(data[offer.args[0] :])
