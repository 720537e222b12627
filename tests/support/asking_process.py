"""Many requests at once over one wire, in a process of its own that test_standing_still.py stops.

    python -m support.asking_process "ASKER on LOOP" PORT REQUESTS DEADLINE

It writes how many of them came to what.
"""

from __future__ import annotations

import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import anyio

from deliveryd.channels.base import Accepted
from deliveryd.directory.base import Terms
from deliveryd.directory.http import open_http_source
from deliveryd.directory.http_options import HttpDirectoryOptions
from deliveryd.directory.remote import RemoteDirectory
from deliveryd.errors import DeliverydError
from deliveryd.http.asyncio_wire import AsyncioWire
from deliveryd.http.stream_wire import StreamWire
from deliveryd.http.target import target_of
from deliveryd.http.wire import Wire
from deliveryd.model import Customer
from deliveryd.testing.samples import dispatch, opened

Ask = Callable[[int], Awaitable[str]]
"""One request, told by its number; what it came to."""


def over(wire: Wire, port: int, deadline: float) -> AbstractAsyncContextManager[Ask]:
    """Requests over a wire."""
    target = target_of(f"http://127.0.0.1:{port}/")

    async def ask(_number: int) -> str:
        try:
            await wire.exchange("GET", target, [], b"", deadline=deadline, max_body=1 << 20)
        except DeliverydError as error:
            return type(error).__name__
        return "answered"

    return _closing(ask, wire.aclose)


@asynccontextmanager
async def _closing(ask: Ask, close: Callable[[], Awaitable[None]]) -> AsyncIterator[Ask]:
    yield ask
    await close()


def fast(port: int, deadline: float) -> AbstractAsyncContextManager[Ask]:
    """The wire that is fast."""
    return over(AsyncioWire(ssl.create_default_context), port, deadline)


def streams(port: int, deadline: float) -> AbstractAsyncContextManager[Ask]:
    """The wire over streams."""
    return over(StreamWire(ssl.create_default_context), port, deadline)


@asynccontextmanager
async def smtp(port: int, deadline: float) -> AsyncIterator[Ask]:
    """Mails."""
    options = {"host": "127.0.0.1", "port": port, "tls": "none", "sender": "news@shop.example"}
    async with opened("smtp", options, block="email", timeout=deadline) as channel:

        async def ask(_number: int) -> str:
            verdict = await channel.send(dispatch("email", {"subject": "Hi", "body": "Bonjour"}))
            return "answered" if isinstance(verdict, Accepted) else str(verdict)

        yield ask


@asynccontextmanager
async def directory(port: int, deadline: float) -> AsyncIterator[Ask]:
    """Customers."""
    terms = Terms(300.0, deadline, 1000)
    options = {"url": f"http://127.0.0.1:{port}/{{customerId}}", "fields": {"name": "/name"}}
    remote = RemoteDirectory(open_http_source(HttpDirectoryOptions.model_validate(options), terms), terms)

    async def ask(number: int) -> str:
        found: list[str] = []

        async def answered(answers: Mapping[int, object]) -> None:
            found.extend("answered" if isinstance(each, Customer) else str(each) for each in answers.values())

        await remote.look_up([number], answered)
        return found[0]

    async with aclosing(remote):
        yield ask


ASKERS = {"fast wire": fast, "streams": streams, "smtp": smtp, "directory": directory}


async def main(asker: str, port: int, requests: int, deadline: float) -> None:
    """Ask, and say what became of it."""
    outcomes: Counter[str] = Counter()

    async def one(number: int) -> None:
        outcomes[await ask(number)] += 1

    async with ASKERS[asker](port, deadline) as ask:
        async with anyio.create_task_group() as asking:
            for number in range(requests):
                asking.start_soon(one, number)
        sys.stdout.write(f"{dict(outcomes)}\n")


if __name__ == "__main__":
    name, _, loop = sys.argv[1].partition(" on ")
    port, requests, deadline = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    anyio.run(
        main, name, port, requests, deadline,
        backend="trio" if loop == "trio" else "asyncio",
        backend_options={"use_uvloop": True} if loop == "uvloop" else {},
    )  # fmt: skip
