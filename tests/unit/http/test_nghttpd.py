"""HTTP/2 against a server that isn't ours: nghttpd, which sends back what it was sent."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest

from deliveryd.http.http2_wire import Http2Wire
from deliveryd.http.target import target_of
from support.patience import PATIENCE
from support.ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("nghttpd") is None, reason="nghttpd is missing (Debian: nghttp2-server)"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["1", "100"])
def streams(request: pytest.FixtureRequest) -> str:
    """How many requests at a time the server takes."""
    return str(request.param)


@pytest.fixture
def url(streams: str) -> Iterator[str]:
    port = free_port()
    command = ["nghttpd", "--no-tls", "--echo-upload", f"--max-concurrent-streams={streams}", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        _wait_until_it_listens(port)
        yield f"http://127.0.0.1:{port}/push"
        server.terminate()


def _wait_until_it_listens(port: int) -> None:
    ends = time.monotonic() + PATIENCE
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert time.monotonic() < ends, "nghttpd doesn't listen"
        os.sched_yield()


async def test_each_request_has_its_own_answer(url: str) -> None:
    wire = Http2Wire(ssl.create_default_context)
    answered: Counter[bytes] = Counter()

    async def post(body: bytes) -> None:
        answer = await wire.exchange(
            "POST", target_of(url), [(b"content-type", b"text/plain")], body, deadline=20.0, max_body=100_000
        )
        assert answer.status == 200
        assert answer.body == body
        answered[body] += 1

    async with anyio.create_task_group() as group:
        for number in range(300):
            group.start_soon(post, b"%d " % number * 100)
    await wire.aclose()
    assert len(answered) == 300
    assert set(answered.values()) == {1}
