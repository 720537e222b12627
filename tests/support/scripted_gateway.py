"""An HTTP gateway for the tests, on a real socket: it keeps every request, and answers by a script."""

from __future__ import annotations

import json
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener


class Seen(NamedTuple):
    """A request as it came in; header names are lower-case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """An answer of the script."""

    status: int = 200
    body: bytes = b'{"id": "p-1"}'
    headers: tuple[tuple[str, str], ...] = ()


class HangUp(NamedTuple):
    """Close the connection once the request has come in, after `first` bytes of an answer."""

    first: bytes = b""


class Stall(NamedTuple):
    """Never answer more than `first` bytes; the connection stays open."""

    first: bytes = b""


Act = Reply | HangUp | Stall


class Gateway:
    """The script and what came in. Without a script every request is answered 200 with an id."""

    def __init__(self, scheme: str) -> None:
        self.port = 0
        self._scheme = scheme
        self.script: deque[Act] = deque()
        self.seen: list[Seen] = []

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def json(self, index: int = -1) -> object:
        """The body of a request that came in, parsed."""
        return json.loads(self.seen[index].body)

    async def serve(self, stream: ByteStream) -> None:
        """Answer the requests of one connection."""
        async with stream:
            buffered = BufferedByteReceiveStream(stream)
            try:
                while True:
                    self.seen.append(await _read(buffered))
                    act = self.script.popleft() if self.script else Reply()
                    if isinstance(act, Reply):
                        await stream.send(_written(act))
                    elif isinstance(act, HangUp):
                        await stream.send(act.first)
                        return
                    else:
                        await stream.send(act.first)
                        await anyio.sleep_forever()
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                return


async def _read(stream: BufferedByteReceiveStream) -> Seen:
    head = (await stream.receive_until(b"\r\n\r\n", 65536)).decode("latin-1")
    request_line, *lines = head.split("\r\n")
    method, target, _ = request_line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    size = int(headers.get("content-length", "0"))
    return Seen(method, target, headers, await stream.receive_exactly(size) if size else b"")


def _written(reply: Reply) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    head = f"HTTP/1.1 {reply.status} Answer\r\n{headers}Content-Length: {len(reply.body)}\r\n\r\n"
    return head.encode("latin-1") + reply.body


@asynccontextmanager
async def open_gateway(tls: ssl.SSLContext | None = None) -> AsyncIterator[Gateway]:
    """A gateway that listens until the block ends."""
    gateway = Gateway("https" if tls else "http")
    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    gateway.port = plain.extra(SocketAttribute.local_port)  # noqa: S610  # no database
    listener = TLSListener(plain, tls, standard_compatible=False) if tls else plain
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, gateway.serve)
        yield gateway
        group.cancel_scope.cancel()


async def closed_port() -> int:
    """A port of this computer on which nobody listens."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port: int = listener.extra(SocketAttribute.local_port)  # noqa: S610  # no database
        return port
