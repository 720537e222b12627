"""Posts a receipt for each message, over many connections: `receipts_load.py URL MESSAGES CONNECTIONS`.

It prints how many seconds passed from the first to the last answer, and fails at an answer that isn't 2xx.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast
from urllib.parse import urlsplit

import uvloop

REQUEST = (
    b"POST %b HTTP/1.1\r\nHost: receipts\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)
BODY = b'{"id":"p%07d","status":"delivered","at":"2026-01-01T00:00:00Z"}'


class Reporter(asyncio.Protocol):
    """One connection: the next receipt as soon as the last one is answered."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._left = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def next(self) -> None:
        """Post another one, if there are more."""
        request = self._load.next()
        if request is not None:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._left += data
        end = self._left.find(b"\r\n\r\n")
        if end < 0 or len(self._left) < end + 4 + _length(self._left[:end].lower()):
            return
        answer, self._left = self._left, b""
        self._load.answered(answer)
        self.next()


def _length(head: bytes) -> int:
    place = head.find(b"content-length:")
    return 0 if place < 0 else int(head[place + 15 :].split(b"\r\n", 1)[0])


class Load:
    """All receipts, and how many are answered."""

    def __init__(self, path: bytes, messages: int) -> None:
        self._path = path
        self._messages = messages
        self._given = self._answers = 0
        self.failure: bytes | None = None
        self.over = asyncio.Event()

    def next(self) -> bytes | None:
        """The next request."""
        if self._given == self._messages:
            return None
        self._given += 1
        body = BODY % self._given
        return REQUEST % (self._path, len(body), body)

    def answered(self, answer: bytes) -> None:
        """Count an answer."""
        self._answers += 1
        if not answer.startswith(b"HTTP/1.1 2"):
            self.failure = answer
        if self.failure or self._answers == self._messages:
            self.over.set()


async def main(url: str, messages: int, connections: int) -> float:
    """Post all; return the seconds."""
    address = urlsplit(url)
    load = Load(address.path.encode(), messages)
    loop = asyncio.get_running_loop()
    reporters = [
        (await loop.create_connection(lambda: Reporter(load), address.hostname, address.port))[1]
        for _ in range(connections)
    ]
    start = time.perf_counter()
    for reporter in reporters:
        reporter.next()
    await load.over.wait()
    if load.failure:
        raise SystemExit(load.failure.decode("utf-8", "replace"))
    return time.perf_counter() - start


if __name__ == "__main__":
    print(uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
