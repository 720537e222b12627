"""A process that stood still (SIGSTOP, a suspended machine) with answers in its sockets when it goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from anyio.abc import Process, SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.text import TextReceiveStream

from support.patience import PATIENCE
from support.places import TESTS

pytestmark = pytest.mark.anyio

REQUESTS = 60
DEADLINE = 2.0
ASKS = "support.asking_process"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Peer:
    """A server that answers nobody until it is told to."""

    def __init__(self) -> None:
        self.waiting = 0
        self.all_wait = anyio.Event()
        self.answer = anyio.Event()

    async def hold(self, stream: SocketStream, answer: bytes) -> None:
        """Send an answer once it is time to."""
        self.waiting += 1
        if self.waiting == REQUESTS:
            self.all_wait.set()
        await self.answer.wait()
        await stream.send(answer)


Serve = Callable[[Peer, SocketStream], Awaitable[None]]


async def speak_http(peer: Peer, stream: SocketStream, size: int = 300_000) -> None:
    """One request; the usual answer to it takes more than one read."""
    await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", 65536)
    body = b'{"name": "' + b"x" * size + b'"}'
    await peer.hold(stream, b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    await anyio.sleep_forever()


async def speak_smtp(peer: Peer, stream: SocketStream) -> None:
    """One mail, whose final reply is held back."""
    lines = BufferedByteReceiveStream(stream)
    await stream.send(b"220 mail.example ESMTP\r\n")
    while True:
        line = await lines.receive_until(b"\r\n", 65536)
        if line == b"DATA":
            await stream.send(b"354 go on\r\n")
            await lines.receive_until(b"\r\n.\r\n", 1 << 20)
            await peer.hold(stream, b"250 taken\r\n")
        else:
            await stream.send(b"250 mail.example\r\n")


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[Peer, int]]:
    """A server on a free port."""
    peer = Peer()

    async def handle(stream: SocketStream) -> None:
        async with stream:
            try:
                await serve(peer, stream)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                return

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=2 * REQUESTS)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield peer, listener.extra(SocketAttribute.local_port)  # noqa: S610  # no database
        tasks.cancel_scope.cancel()


async def stop(process: Process) -> None:
    """Have the process stand still, as a debugger or a hypervisor does."""
    os.kill(process.pid, signal.SIGSTOP)
    _, status = await anyio.to_thread.run_sync(os.waitpid, process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asker", "serve"),
    [
        ("fast wire on asyncio", speak_http),
        ("fast wire on uvloop", speak_http),
        ("streams on asyncio", speak_http),
        ("streams on trio", speak_http),
        ("smtp on asyncio", speak_smtp),
        ("smtp on uvloop", speak_smtp),
        ("directory on uvloop", partial(speak_http, size=1000)),
    ],
)
async def test_answers_that_came_while_the_process_stood_still_are_read(asker: str, serve: Serve) -> None:
    """Its deadlines are over when it goes on, and yet none of sixty requests is in doubt."""
    async with serving(serve) as (peer, port):
        command = [
            sys.executable,
            "-m",
            "support.asking_process",
            asker,
            str(port),
            str(REQUESTS),
            str(DEADLINE),
        ]
        async with await anyio.open_process(command, stderr=None, cwd=TESTS) as process:
            assert process.stdout is not None
            said = TextReceiveStream(process.stdout)
            with anyio.fail_after(PATIENCE):
                await peer.all_wait.wait()
                await stop(process)
                peer.answer.set()
                with anyio.move_on_after(1.5 * DEADLINE):
                    pytest.fail(f"a stopped process said {await said.receive()}")
                os.kill(process.pid, signal.SIGCONT)
                outcomes = "".join([text async for text in said])
    assert outcomes == f"{{'answered': {REQUESTS}}}\n"
