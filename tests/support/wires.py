"""Both wires, and a server whose peers follow a script, for the tests of wires."""

from __future__ import annotations

import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute, SocketStream

from deliveryd.http.asyncio_wire import AsyncioWire
from deliveryd.http.stream_wire import StreamWire
from deliveryd.http.target import target_of
from deliveryd.http.wire import Target, Wire, WireResponse
from support.patience import PATIENCE

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Kind(NamedTuple):
    """A wire, and the event loop that it runs on."""

    backend: tuple[str, dict[str, Any]]
    make: Callable[[], Wire]


def _fast() -> Wire:
    return AsyncioWire(ssl.create_default_context)


def _streams() -> Wire:
    return StreamWire(ssl.create_default_context)


FAST = [
    pytest.param(Kind(("asyncio", {}), _fast), id="fast-asyncio"),
    pytest.param(Kind(("asyncio", {"use_uvloop": True}), _fast), id="fast-uvloop"),
]


STREAMS = [
    pytest.param(Kind(("asyncio", {"use_uvloop": True}), _streams), id="streams-uvloop"),
    pytest.param(Kind(("trio", {}), _streams), id="streams-trio"),
]


fast_only = pytest.mark.parametrize("kind", FAST, indirect=True)


class Peer:
    """One connection, as the server sees it; `number` counts them from 1."""

    def __init__(self, stream: SocketStream, number: int, server: Server) -> None:
        self._stream = stream
        self._server = server
        self._buffer = b""
        self.number = number

    async def request(self) -> bytes:
        """Read one whole request."""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += await self._stream.receive()
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        size = int(length[1]) if length else 0
        while len(rest) < size:
            rest += await self._stream.receive()
        self._buffer = rest[size:]
        whole = head + b"\r\n\r\n" + rest[:size]
        self._server.requests.append(whole)
        return whole

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def hung_up(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while True:
                await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self._server.hang_ups += 1
            self._server.hung_up.set()

    def reset_at_close(self) -> None:
        """Let the connection end with a reset instead of an orderly end."""
        raw = self._stream.extra(SocketAttribute.raw_socket)  # noqa: S610  # no database
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Server:
    """What came in over all connections."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0
        self.hang_ups = 0
        self.hung_up = anyio.Event()
        self.requests: list[bytes] = []

    def target(self, path: str = "/") -> Target:
        return target_of(f"http://127.0.0.1:{self.port}{path}")


Serve: TypeAlias = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Server]:
    """A server that lets `serve` handle each connection, and closes it afterwards."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    server = Server(listener.extra(SocketAttribute.local_port))  # noqa: S610  # no database

    async def handle(stream: SocketStream) -> None:
        server.connections += 1
        async with stream:
            try:
                await serve(Peer(stream, server.connections, server))
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        with anyio.fail_after(PATIENCE):
            yield server
        tasks.cancel_scope.cancel()


def answering(answer: bytes) -> Serve:
    """Answer every request with these bytes, and keep the connection."""

    async def serve(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(answer)

    return serve


def closing(answer: bytes) -> Serve:
    """Answer one request with these bytes, and close the connection."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    return serve


async def ask(
    wire: Wire,
    target: Target,
    *,
    body: bytes = b"",
    deadline: float = 10.0,
    max_body: int = 1 << 20,
) -> WireResponse:
    method = "POST" if body else "GET"
    return await wire.exchange(method, target, [(b"x-a", b"1")], body, deadline=deadline, max_body=max_body)


HEAD = b"HTTP/1.1 200 OK\r\n"
