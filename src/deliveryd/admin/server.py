"""One small, bounded HTTP server for an ASGI application, embedded in the worker's own event loop.

It runs on asyncio only, like the uvicorn below it, and leaves signals to the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST_CONNECTIONS = 200
_LONGEST_HEAD = 16 * 1024
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
        # h11, unlike httptools, bounds the head of a request.
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
        h11_max_incomplete_event_size=_LONGEST_HEAD,
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


class _ImpatientProtocol(H11Protocol):
    """Gives every request a limited time, from connecting or from the answer before to its own answer.

    Without it, clients that send or read nothing would occupy all places for ever.
    """

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._patience is not None:
            self._patience.cancel()

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
