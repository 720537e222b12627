"""One small, bounded HTTP server for an ASGI application, embedded in the worker's own event loop.

It runs on asyncio only, like the uvicorn below it, and leaves signals to the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, cast

import anyio
import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deliveryd.http import unfinished
from deliveryd.http.peers import Peers
from deliveryd.http.unfinished import Unfinished

_LONGEST_HEAD = 16 * 1024
_MOST_AHEAD = 32
_IDLE_SECONDS = 5
_REQUEST_TIMEOUT = 15.0
_FAREWELL_SECONDS = 1

_EVERYBODY = Peers()


async def serve(app: ASGIApp, bound: socket.socket, stop: anyio.Event, peers: Peers = _EVERYBODY) -> None:
    """Answer requests on `bound` until `stop` is set, then let requests under way finish for a second.

    `peers` tells apart who sends them. The socket and all connections are closed in the end, also when this
    call is cancelled.
    """
    server = _Server(_config(app, peers), stop)
    try:
        await server.serve([bound])
    finally:
        server.close(bound)


def _config(app: ASGIApp, peers: Peers) -> uvicorn.Config:
    protocol = partial(_ImpatientProtocol, peers, Unfinished())
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # what a stranger sends in must not fill the log
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Whole requests that wait for their answer, besides; those that were parted from count for a turn.
        limit_concurrency=2 * unfinished.MOST,
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
    parser, which costs far less than h11, would collect without end: heads, requests before their turn, and
    connections whose client lets the server wait.
    """

    _patience: asyncio.TimerHandle
    _deadline = 0.0
    _collected = 0
    _owed = 0  # answers to requests that came whole
    _begun = False  # a request, which hasn't come whole
    _headed = False  # its head has come, and nobody looked at it yet
    _is_offer = False  # of another protocol
    _state: Literal["new", "waited for", "idle", "at work"] = "new"
    _fault: str | None = None

    def __init__(self, peers: Peers, unfinished: Unfinished, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._peers = peers
        self._unfinished = unfinished

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = _Parser(self)
        self._peer = self._peers.connected(self.client[0]) if self.client is not None else None
        self._deadline = self.loop.time() + _REQUEST_TIMEOUT
        self._watch()
        self._place()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unfinished.leave(self)
        self._patience.cancel()

    def data_received(self, data: bytes) -> None:
        self._collected += len(data)
        super().data_received(data)
        if self._collected > _LONGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")
        self._place()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MOST_AHEAD:
            raise self._wrong("There are too many requests before their turn.")
        self._begun, self._headed = True, False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._collected = 0
        self._headed = True
        self._is_offer = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._is_offer:
            return
        hosts = 0
        for name, _value in self.headers:
            if name == b"host":
                hosts += 1
        if hosts != 1 and (hosts > 1 or self.parser.get_http_version() == "1.1"):
            raise self._wrong("A request has one Host header.")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._collected = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._collected = 0
        if not self._is_offer:
            self._begun = False
            self._owed += 1
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._owed -= 1
        self._deadline = self.loop.time() + _REQUEST_TIMEOUT
        self._place()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._place()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._place()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(self._fault or msg)

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

    def has_unread(self) -> bool:
        """Whether the client sent something that wasn't read yet."""
        unread = select.poll()
        unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(unread.poll(0))

    def part(self) -> None:
        """Close the connection at once."""
        self._unfinished.leave(self)
        self.transport.abort()

    def _wrong(self, fault: str) -> ValueError:
        """What the parser is to stop with; the client is told the fault."""
        self._fault = fault
        return ValueError(fault)

    def _place(self) -> None:
        """Keep it known whether the client is waited for: for a request, its rest, or to read an answer."""
        if self._owed and not self.flow.write_paused:
            if self._state != "at work":
                self._state = "at work"
                self._unfinished.leave(self)
        elif not self._begun and self.cycle is not None:
            if self._state != "idle":
                self._state = "idle"
                self._unfinished.enter(self, None)
        else:
            self._place_unfinished()

    def _place_unfinished(self) -> None:
        """Its peer has a share of those; behind a proxy the head of the request names the peer."""
        if self._state != "waited for":
            self._state = "waited for"
            self._unfinished.enter(self, self._peer)
        if self._headed and self._peer is None:
            self._headed = False
            forwarded = [value for name, value in self.headers if name == b"x-forwarded-for"]
            self._unfinished.belongs(self, self._peers.forwarded(forwarded) if forwarded else None)

    def _watch(self) -> None:
        """Close the connection when its time is up. Answers move the deadline and leave the timer."""
        if self.loop.time() < self._deadline:
            self._patience = self.loop.call_at(self._deadline, self._watch)
        else:
            self.transport.abort()


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
