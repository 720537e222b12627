"""A proxy before the service that breaks off the answers of its queue, each at another place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from crashes.ledger import Record, Torn

END_OF_HEAD = b"\r\n\r\n"


def _in_headers(head: bytes, _body: bytes) -> bytes:
    return head[: len(head) // 2]


def _before_last_bracket(head: bytes, body: bytes) -> bytes:
    return head + body[: body.rindex(b"]")]


def _in_number(head: bytes, body: bytes) -> bytes:
    """After the first digit of an id that has two of them, so that it would still be a number."""
    return head + body[: body.index(b'"id": 1') + len(b'"id": 1')]


def _in_string(head: bytes, body: bytes) -> bytes:
    return head + body[: body.index(b'"w') + 2]


def _in_character(head: bytes, body: bytes) -> bytes:
    return head + body[: body.index("\u20ac".encode()) + 1]


def _between_elements(head: bytes, body: bytes) -> bytes:
    return head + body[: body.index(b"}},") + 3]


def _length_too_large(head: bytes, body: bytes) -> bytes:
    return head.replace(b"content-length: %d" % len(body), b"content-length: %d" % (len(body) + 9)) + body


def _length_too_small(head: bytes, body: bytes) -> bytes:
    return head.replace(b"content-length: %d" % len(body), b"content-length: %d" % (len(body) - 1)) + body


def _no_length(head: bytes, body: bytes) -> bytes:
    """As old servers answer: the body ends with the connection, here too early."""
    return _without_length(head) + body[: body.rindex(b"]")]


def _chunk_without_end(head: bytes, body: bytes) -> bytes:
    """The whole body in one chunk, and no last chunk behind it."""
    chunked = _without_length(head).removesuffix(b"\r\n") + b"transfer-encoding: chunked\r\n\r\n"
    return chunked + b"%x\r\n%b\r\n" % (len(body), body)


def _without_length(head: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(b"content-length"))


TEARS: Mapping[str, Callable[[bytes, bytes], bytes]] = {
    "before the headers": lambda _head, _body: b"",
    "in the headers": _in_headers,
    "after the headers": lambda head, _body: head,
    "in a number": _in_number,
    "in a string": _in_string,
    "in a character": _in_character,
    "between elements": _between_elements,
    "before the last bracket": _before_last_bracket,
    "content-length too large": _length_too_large,
    "content-length too small": _length_too_small,
    "no content-length": _no_length,
    "no last chunk": _chunk_without_end,
}


class TornQueue:
    """Carries requests to the service, one on each connection; tears the first answers of its queue."""

    def __init__(
        self, port: int, tears: Sequence[str], add: Callable[[Record], None], on_torn: Callable[[], None]
    ) -> None:
        self._port = port
        self._tears = list(tears)
        self._add = add
        self._on_torn = on_torn

    async def open(self) -> str:
        """Listen; the address to ask instead of the service's own."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Listen no more."""
        self._server.close()
        await self._server.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head, body = await _read(reader)
            is_queue = head.startswith(b"GET /queue")
            head, body = await self._ask(_closing(head) + body)
            writer.write(self._tear(head, body) if is_queue and self._tears else head + body)
            await writer.drain()

    def _tear(self, head: bytes, body: bytes) -> bytes:
        how = self._tears[0]
        try:
            torn = TEARS[how](head, body)
        except ValueError:  # what is left in the queue can't be torn there
            return head + body
        self._tears.pop(0)
        self._add(Torn(how))
        self._on_torn()
        return torn

    async def _ask(self, request: bytes) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        with contextlib.closing(writer):
            writer.write(request)
            head, body = await _read(reader)
        return _closing(head), body


def _closing(head: bytes) -> bytes:
    """The same, saying that the connection ends with it."""
    return head.removesuffix(b"\r\n") + b"connection: close\r\n\r\n"


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head of a message and its body."""
    head = await reader.readuntil(END_OF_HEAD)
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    length = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
    return head, await reader.readexactly(length)
