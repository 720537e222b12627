"""One small, bounded HTTP server for an ASGI application, embedded in the worker's own event loop.

It runs on asyncio only, like uvicorn. Signals belong to the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import anyio
import httptools
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from deliveryd.http.peers import EVERYBODY, MOST_UNFINISHED, Peers

_LONGEST_HEAD = 16 * 1024
_TOO_LONG = "The head of the request is too long."
_MOST_AHEAD = 32
_MOST_KEPT = MOST_UNFINISHED // 2
"""Connections beyond which a response ends its own: one closed later, while idle, may carry a request."""

_IDLE_SECONDS = 5
_REQUEST_TIMEOUT = 15.0
_FAREWELL_SECONDS = 1
"""For requests in progress at the end, and for the next one of each connection in use."""


MOST_OF_A_PEER = 100
"""Most connections of one peer that wait for the rest of a request."""

_FACTOR = 2
"""By how many connections with unread data may exceed a limit."""


async def serve(app: ASGIApp, bound: socket.socket, stop: anyio.Event, peers: Peers = EVERYBODY) -> None:
    """Serve requests on `bound` until `stop` is set, then give requests in progress a second to finish.

    An idle connection that was used within the last second gets as long to bring its next request, which
    is answered with `Connection: close`: closed while idle, it might cross a request, and few clients
    repeat a POST.
    `peers` identifies clients. The socket and all connections are closed at the end, also on cancellation.
    """
    server = _Server(_config(_ending_quietly(app), peers), stop)
    try:
        await server.serve([bound])
    finally:
        server.close(bound)


def _ending_quietly(app: ASGIApp) -> ASGIApp:
    """Have requests end that are cancelled with the server: uvicorn would log the stack of each."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return run


def _config(app: ASGIApp, peers: Peers) -> uvicorn.Config:
    protocol = partial(_TimedProtocol, peers, Unfinished())
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # clients must not be able to fill the log
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Whole requests that wait for their answer, besides; those that were parted from count for a turn.
        limit_concurrency=2 * MOST_UNFINISHED,
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
        for server in self.servers:
            server.close()
        await self._part_from(
            [each for each in self.server_state.connections if isinstance(each, _TimedProtocol)]
        )
        if self.server_state.connections or self.server_state.tasks:  # else it would only pause
            await super().shutdown(sockets)

    async def _part_from(self, connections: Sequence[_TimedProtocol]) -> None:
        """End the connections that would go on for ever, and have those in use end with a response."""
        for connection in connections:
            if connection.is_streaming:
                connection.transport.close()
        closed = [connection.end_with_a_response() for connection in connections if connection.is_in_use]
        if closed:
            await asyncio.wait(closed, timeout=_FAREWELL_SECONDS)

    def close(self, bound: socket.socket) -> None:
        """Close all remaining connections at once."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
        bound.close()


class _TimedProtocol(HttpToolsProtocol):
    """Limits the time of every request, from the connection or the previous response to its own response.

    Otherwise clients that send or read nothing could hold all connections forever. A response that has begun,
    and is read, isn't limited: a stream of events has no end. It also limits what the
    parser, which costs far less than h11, would buffer without end: heads, pipelined requests, and
    connections on which the server waits for the client.
    """

    _patience: asyncio.TimerHandle
    _deadline = 0.0
    _collected = 0
    _owed = 0  # responses to complete requests
    _begun = False  # an incomplete request
    _headed = False  # its head is complete and not processed yet
    _is_in_head = False
    _is_offer = False  # of another protocol
    _state: Literal["new", "waited for", "idle", "at work"] = "new"
    _fault: str | None = None
    _answered: RequestResponseCycle | None = None
    """The request that is being answered. uvicorn's `cycle` is the last one read, which may wait for it."""
    _used_until = 0.0
    """Until when it counts as in use, by the event loop's time."""
    _closed: asyncio.Future[None] | None = None

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
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._unfinished.leave(self)
        self._patience.cancel()
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._collected += len(data)
        super().data_received(data)
        if self._collected > _LONGEST_HEAD and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)
        self._place()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MOST_AHEAD:
            raise self._wrong("Too many pipelined requests.")
        self._begun, self._headed = True, False
        self._is_in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of the head: trailers aren't merged with it (RFC 9110, 6.5.1)."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._collected = 0
        self._headed = True
        self._is_in_head = False
        self._is_offer = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._is_offer:
            return
        length, hosts, host = len(self.url), 0, b""
        for name, value in self.headers:
            length += len(name) + len(value)
            if name == b"host":
                hosts, host = hosts + 1, value
        if length > _LONGEST_HEAD:  # one that comes at once is complete before what came is counted
            raise self._wrong(_TOO_LONG)
        if hosts != 1 and (hosts > 1 or self.parser.get_http_version() == "1.1"):
            raise self._wrong("A request must have one Host header.")
        if self.url[:1] != b"/" and _names_another(self.url, host):
            raise self._wrong("The target of a request must name the same host as its Host header.")
        super().on_headers_complete()
        if self._answered is None:
            self._answered = self.cycle
        is_last = self._closed is not None or len(self.connections) > _MOST_KEPT
        if is_last and not self.pipeline:
            self.cycle.keep_alive = False

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
        self._answered = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        self._owed -= 1
        self._deadline = self.loop.time() + _REQUEST_TIMEOUT
        self._used_until = self.loop.time() + _FAREWELL_SECONDS
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
        """Parse a request again without its upgrade header, then continue with the data after it."""
        line = b"%b %b HTTP/%b" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        kept = (b"%b: %b" % header for header in self.headers if header[0] != b"upgrade")
        self.parser = _Parser(self)
        self.parser.feed_data(b"\r\n".join([line, *kept, b"", rest]))

    def has_unread(self) -> bool:
        """Whether the client sent data that wasn't read yet."""
        unread = select.poll()
        unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(unread.poll(0))

    @property
    def is_in_use(self) -> bool:
        """Whether it is idle, and so shortly after a response that a next request may be under way."""
        return self._state == "idle" and self.loop.time() < self._used_until

    def end_with_a_response(self) -> asyncio.Future[None]:
        """Close the connection after the next response; what is returned is done once it is closed."""
        self._closed = self.loop.create_future()
        return self._closed

    def drop(self) -> None:
        """Close the connection at once."""
        self._unfinished.leave(self)
        self.transport.abort()

    def _wrong(self, fault: str) -> ValueError:
        """Return the error that stops the parser; the client gets its text."""
        self._fault = fault
        return ValueError(fault)

    def _place(self) -> None:
        """Record whether the server waits for the client: for a request, its rest, or to read a response."""
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
        """Record the connection under its peer; behind a proxy, the request's head names the peer."""
        if self._state != "waited for":
            self._state = "waited for"
            self._unfinished.enter(self, self._peer)
        if self._headed and self._peer is None:
            self._headed = False
            forwarded = [value for name, value in self.headers if name == b"x-forwarded-for"]
            self._unfinished.assign(self, self._peers.forwarded(forwarded) if forwarded else None)

    def _watch(self) -> None:
        """Close the connection at its deadline. Responses move the deadline, but not the timer."""
        if self.is_streaming:
            self._deadline = self.loop.time() + _REQUEST_TIMEOUT
        if self.loop.time() < self._deadline:
            self._patience = self.loop.call_at(self._deadline, self._watch)
        else:
            self.transport.abort()

    @property
    def is_streaming(self) -> bool:
        """Whether a response is being sent that the client reads: it may take as long as it takes."""
        if self._answered is None or not self._owed:
            return False
        return self._answered.response_started and not self.flow.write_paused


def _names_another(target: bytes, host: bytes) -> bool:
    """Whether a target is an absolute address of another host, which would count (RFC 9112, 3.2.2)."""
    _, is_absolute, rest = target.partition(b"://")
    return bool(is_absolute) and rest.partition(b"/")[0].lower() != host.lower()


class _Parser(httptools.HttpRequestParser):
    """Ignores `Upgrade`, as every server may (RFC 9110, 7.8).

    The parser by itself takes an offered upgrade as accepted, and the body as not part of the request. But
    clients that prefer HTTP/2 offer it with ordinary reports.
    """

    def __init__(self, protocol: _TimedProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self.get_method() == b"CONNECT":
                raise
            self._protocol.pass_over(data[offer.args[0] :])


class Unfinished:
    """Connections that wait for their client, the longest waiting first.

    If there are too many, of one peer or in total, the one that has waited longest is closed. So a client
    that holds requests open can't block others, which last until that many newer ones have arrived. Complete
    requests aren't included, and one whose rest has arrived unread isn't closed.
    """

    def __init__(self) -> None:
        self._all: dict[_TimedProtocol, str | None] = {}
        self._of_peer: dict[str, dict[_TimedProtocol, None]] = {}

    def enter(self, connection: _TimedProtocol, peer: str | None) -> None:
        """Add a connection whose client is waited for; `peer` None: not counted per peer."""
        if connection in self._all:
            self.leave(connection)
        self._all[connection] = None
        if peer is not None:
            self.assign(connection, peer)
        if len(self._all) > MOST_UNFINISHED:
            _drop_oldest(self._all, MOST_UNFINISHED, connection)

    def assign(self, connection: _TimedProtocol, peer: str | None) -> None:
        """Assign a waiting connection to its peer; it keeps its place in the order."""
        if connection not in self._all:
            return
        if (before := self._all[connection]) is not None:
            self._disown(connection, before)
        self._all[connection] = peer
        if peer is None:
            return
        others = self._of_peer.setdefault(peer, {})
        others[connection] = None
        if len(others) > MOST_OF_A_PEER:
            _drop_oldest(others, MOST_OF_A_PEER, connection)

    def leave(self, connection: _TimedProtocol) -> None:
        """Remove a connection whose client isn't waited for any more."""
        peer = self._all.pop(connection, None)
        if peer is not None:
            self._disown(connection, peer)

    def _disown(self, connection: _TimedProtocol, peer: str) -> None:
        others = self._of_peer[peer]
        del others[connection]
        if not others:
            del self._of_peer[peer]


def _drop_oldest(among: Mapping[_TimedProtocol, object], bound: int, newest: _TimedProtocol) -> None:
    oldest = next((each for each in among if each is not newest and not each.has_unread()), None)
    if oldest is None and len(among) > _FACTOR * bound:
        oldest = next(iter(among))
    if oldest is not None:
        oldest.drop()
