"""Posts a receipt for each message, over many connections: `receipts_load.py URL MESSAGES CONNECTIONS`.

With --batch a request holds so many of them, as a list at `results`.

All requests are made before the first one is posted. It prints how many seconds passed from the first to the
last answer and its own CPU seconds meanwhile, and fails at an answer that isn't 2xx.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import cast
from urllib.parse import urlsplit

import uvloop

REQUEST = (
    b"POST %b HTTP/1.1\r\nHost: receipts\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
)
BODY = b'{"id":"%b%07d","status":"delivered","at":"2026-01-01T00:00:00Z"}'
SIGNATURE = b"X-Signature: %b\r\n"


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

    def __init__(self, requests: list[bytes]) -> None:
        self._requests = iter(requests)
        self._left = len(requests)
        self.failure: bytes | None = None
        self.over = asyncio.Event()

    def next(self) -> bytes | None:
        """The next request."""
        return next(self._requests, None)

    def answered(self, answer: bytes) -> None:
        """Count an answer."""
        self._left -= 1
        if not answer.startswith(b"HTTP/1.1 2"):
            self.failure = answer
        if self.failure or not self._left:
            self.over.set()


def requests(path: str, messages: int, prefix: str, secret: str | None) -> Iterator[bytes]:
    """A receipt for each message, signed if there is a secret."""
    for number in range(1, messages + 1):
        body = BODY % (prefix.encode(), number)
        signed = b""
        if secret is not None:
            signed = SIGNATURE % hmac.new(secret.encode(), body, hashlib.sha256).hexdigest().encode()
        yield REQUEST % (path.encode(), signed, len(body), body)


def batches(path: str, messages: int, prefix: str, size: int) -> Iterator[bytes]:
    """The same in lists."""
    for first in range(1, messages + 1, size):
        numbers = range(first, min(first + size, messages + 1))
        body = b'{"results":[%b]}' % b",".join(BODY % (prefix.encode(), number) for number in numbers)
        yield REQUEST % (path.encode(), b"", len(body), body)


async def post(url: str, load: Load, connections: int) -> tuple[float, float]:
    """Post all; return the seconds, and the CPU seconds of this process."""
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    reporters = [
        (await loop.create_connection(lambda: Reporter(load), address.hostname, address.port))[1]
        for _ in range(connections)
    ]
    start, cpu = time.perf_counter(), time.process_time()
    for reporter in reporters:
        reporter.next()
    await load.over.wait()
    if load.failure:
        raise SystemExit(load.failure.decode("utf-8", "replace"))
    return time.perf_counter() - start, time.process_time() - cpu


def main() -> None:
    """Post, and print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("messages", type=int)
    parser.add_argument("connections", type=int)
    parser.add_argument("--prefix", default="p", help="what the ids of the provider begin with")
    parser.add_argument("--secret", help="sign with it, into X-Signature")
    parser.add_argument("--batch", type=int, default=0, help="receipts in a request; 0: one, and no list")
    chosen = parser.parse_args()
    path = urlsplit(chosen.url).path
    made = (
        batches(path, chosen.messages, chosen.prefix, chosen.batch)
        if chosen.batch
        else requests(path, chosen.messages, chosen.prefix, chosen.secret)
    )
    load = Load(list(made))
    seconds, cpu = uvloop.run(post(chosen.url, load, chosen.connections))
    print(json.dumps({"seconds": seconds, "cpu": cpu}))


if __name__ == "__main__":
    main()
