"""An HTTP gateway on a loopback socket, for tests of adapters and sources: it answers by a script."""

from __future__ import annotations

import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener


class GatewayRequest(NamedTuple):
    """A request as it arrived; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """Answer with this status, body and headers."""

    status: int = 200
    body: bytes = b'{"id": "p-1"}'
    headers: tuple[tuple[str, str], ...] = ()


class Disconnect(NamedTuple):
    """Read the request, send `first`, and close the connection."""

    first: bytes = b""


class Stall(NamedTuple):
    """Read the request, send `first`, and keep the connection open without another byte."""

    first: bytes = b""


Act = Reply | Disconnect | Stall
"""What the gateway does with one request."""


class Gateway:
    """The next entry of `script` decides about a request; when `script` is empty, `respond` does.

    By default `respond` answers every request with 200 and `{"id": "p-1"}`. `seen` holds the requests.
    """

    def __init__(self, scheme: str) -> None:
        self.port = 0
        self._scheme = scheme
        self.script: deque[Act] = deque()
        self.respond: Callable[[GatewayRequest], Act] = lambda _request: Reply()
        self.seen: list[GatewayRequest] = []

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def json(self, index: int = -1) -> object:
        """Return the parsed body of a recorded request, by default the last."""
        return json.loads(self.seen[index].body)

    def fail(self) -> None:
        """Answer every request with 500 from now on."""
        self.script.clear()
        self.respond = lambda _request: Reply(500)

    async def serve(self, stream: ByteStream) -> None:
        """Answer the requests of one connection; `open_gateway` calls it."""
        async with stream:
            buffered = BufferedByteReceiveStream(stream)
            try:
                while True:
                    request = await _read(buffered)
                    self.seen.append(request)
                    act = self.script.popleft() if self.script else self.respond(request)
                    if isinstance(act, Reply):
                        await stream.send(_written(act))
                    elif isinstance(act, Disconnect):
                        await stream.send(act.first)
                        return
                    else:
                        await stream.send(act.first)
                        await anyio.sleep_forever()
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                return


async def _read(stream: BufferedByteReceiveStream) -> GatewayRequest:
    head = (await stream.receive_until(b"\r\n\r\n", 65536)).decode("latin-1")
    request_line, *lines = head.split("\r\n")
    method, target, _ = request_line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    size = int(headers.get("content-length", "0"))
    return GatewayRequest(method, target, headers, await stream.receive_exactly(size) if size else b"")


def _written(reply: Reply) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    head = f"HTTP/1.1 {reply.status} Answer\r\n{headers}Content-Length: {len(reply.body)}\r\n\r\n"
    return head.encode("latin-1") + reply.body


@asynccontextmanager
async def open_gateway(tls: ssl.SSLContext | None = None) -> AsyncIterator[Gateway]:
    """Listen on a free port of 127.0.0.1, with TLS if a context is given, until the block ends."""
    gateway = Gateway("https" if tls else "http")
    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    gateway.port = plain.extra(SocketAttribute.local_port)  # noqa: S610  # no database
    listener = TLSListener(plain, tls, standard_compatible=False) if tls else plain
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, gateway.serve)
        yield gateway
        group.cancel_scope.cancel()


async def closed_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port: int = listener.extra(SocketAttribute.local_port)  # noqa: S610  # no database
        return port
