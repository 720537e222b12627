"""How long genuine receipts take while bad connections come: `crowding.py URL SECRET`.

URL is where a worker takes receipts of a channel, such as http://127.0.0.1:9471/receipts/sms. The bad ones
come from many addresses of this machine: some say nothing, some stop within the head or drip their body, some
aren't HTTP. They stay until they are closed. A genuine receipt, signed into X-Signature, comes over a
connection of its own every quarter of a second; it prints what they were answered and how long that took.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import itertools
import json
import resource
import statistics
import time
from collections import Counter
from contextlib import suppress
from urllib.parse import urlsplit

HEAD = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n"
PAUSE = 0.25
DRIP = 2.0
PATIENCE = 20.0


class Crowd:
    """Bad connections to one address."""

    def __init__(self, host: str, port: int, path: bytes) -> None:
        self._host = host
        self._port = port
        head = HEAD % (path, 1000)
        self._beginnings = itertools.cycle([b"", head, head + b"\r\n{", b"\x16\x03\x01\x02\x00"])
        self._sources = itertools.cycle(f"127.1.{a}.{b}" for a in range(200) for b in range(1, 250))
        self.made = 0
        self.failed = 0

    async def come(self, per_minute: int) -> None:
        """Connect at a steady rate, until this is cancelled."""
        began = time.perf_counter()
        async with asyncio.TaskGroup() as all_of_them:
            for number in itertools.count():
                await asyncio.sleep(max(began + number * 60 / per_minute - time.perf_counter(), 0))
                all_of_them.create_task(self._stay(next(self._beginnings), next(self._sources)))

    async def _stay(self, beginning: bytes, source: str) -> None:
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, local_addr=(source, 0))
        except OSError:
            self.failed += 1
            return
        self.made += 1
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                writer.write(beginning)
                while not reader.at_eof():
                    if beginning.endswith(b"{"):
                        writer.write(b" ")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(DRIP):
                            await reader.read(1000)
        writer.close()


async def report(host: str, port: int, path: bytes, secret: bytes, number: int) -> str:
    """Post a genuine receipt; the status of its answer."""
    body = json.dumps({"id": f"crowd-{number}", "status": "delivered"}).encode()
    signature = hmac.new(secret, body, hashlib.sha256).hexdigest().encode()
    try:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD % (path, len(body)) + b"X-Signature: %b\r\n\r\n%b" % (signature, body))
        answer = await reader.readline()
        writer.close()
    except OSError:
        return "closed"
    return answer.split()[1].decode() if answer else "closed"


async def measure(url: str, secret: str, per_minute: int, seconds: float) -> None:
    """Report for so long, and print what came of it."""
    address = urlsplit(url)
    host, port, path = address.hostname or "", address.port or 80, address.path.encode()
    crowd = Crowd(host, port, path)
    coming = asyncio.create_task(crowd.come(per_minute))
    answers: Counter[str] = Counter()
    took: list[float] = []
    ends = time.perf_counter() + seconds
    for number in itertools.count():
        began = time.perf_counter()
        if began > ends:
            break
        answers[await report(host, port, path, secret.encode(), number)] += 1
        took.append(time.perf_counter() - began)
        await asyncio.sleep(PAUSE)
    coming.cancel()
    with suppress(asyncio.CancelledError):
        await coming
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    figures = {"p50": cuts[49], "p99": cuts[98], "max": max(took)}
    milliseconds = {name: round(1000 * value, 1) for name, value in figures.items()}
    print(json.dumps({"bad": crowd.made, "failed": crowd.failed, "answers": answers, "ms": milliseconds}))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("secret")
    parser.add_argument("--per-minute", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30)
    chosen = parser.parse_args()
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(measure(chosen.url, chosen.secret, chosen.per_minute, chosen.seconds))


if __name__ == "__main__":
    main()
