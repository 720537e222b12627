"""A name server that is silent about one host, and everybody else who looks names up meanwhile."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from deliveryd.channels.base import Accepted, Channel, Verdict
from deliveryd.directory.base import Terms
from deliveryd.directory.http import open_http_source
from deliveryd.directory.http_options import HttpDirectoryOptions
from deliveryd.http.reachability import connect_problem
from deliveryd.testing.gateway import Gateway, open_gateway
from deliveryd.testing.samples import dispatch, opened
from support.directories import open_crm
from support.mail_server import MailServer, open_mail_server
from support.patience import PATIENCE

pytestmark = pytest.mark.anyio

SILENT = "silent.example"
AT_ONCE = 2.0
"""Seconds that a channel with a healthy name may take, while others wait much longer for a silent one."""


@pytest.fixture
def anyio_backend() -> str:
    """The event loop whose own look-ups share one pool of threads."""
    return "asyncio"


@pytest.fixture(autouse=True)
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system's look-ups, which end for `SILENT` only with the test."""
    ended = threading.Event()
    system = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host in (SILENT, SILENT.encode()):
            ended.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return system(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield
    ended.set()


def gateway_options(host: str, port: int) -> dict[str, Any]:
    return {"url": f"http://{host}:{port}/send", "json": {"text": "{content.body}"}}


def server_options(host: str, port: int) -> dict[str, Any]:
    return {"host": host, "port": port, "tls": "none", "sender": "news@shop.example"}


@asynccontextmanager
async def stuck(*channels: Channel) -> AsyncIterator[None]:
    """Forty attempts on each channel, all of them waiting for a name."""
    async with anyio.create_task_group() as attempts:
        for channel in channels:
            for _ in range(40):
                attempts.start_soon(channel.send, mail())
        await anyio.wait_all_tasks_blocked()
        yield
        attempts.cancel_scope.cancel()


def mail() -> Any:
    return dispatch("email", {"subject": "Hi", "body": "Bonjour"})


async def send(channel: Channel) -> Verdict:
    with anyio.fail_after(AT_ONCE):
        return await channel.send(mail())


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with open_gateway() as opened_one:
        yield opened_one


@pytest.fixture
async def server() -> AsyncIterator[MailServer]:
    async with open_mail_server() as opened_one:
        yield opened_one


async def test_no_other_channel_waits_for_it(gateway: Gateway, server: MailServer) -> None:
    """Attempts that hang over one name leave all other names to be looked up at once, over HTTP and SMTP."""
    async with AsyncExitStack() as stack:

        async def channel(adapter: str, options: dict[str, Any]) -> Channel:
            return await stack.enter_async_context(opened(adapter, options, block="email", timeout=30.0))

        silent_gateway = await channel("http", gateway_options(SILENT, gateway.port))
        silent_server = await channel("smtp", server_options(SILENT, server.port))
        healthy_gateway = await channel("http", gateway_options("localhost", gateway.port))
        healthy_server = await channel("smtp", server_options("localhost", server.port))
        async with stuck(silent_gateway, silent_server):
            assert isinstance(await send(healthy_gateway), Accepted)
            assert isinstance(await send(healthy_server), Accepted)


async def test_no_directory_and_no_check_waits_for_it(gateway: Gateway) -> None:
    """Customers are looked up, and `check` connects, while a channel hangs."""
    with open_crm({7: {"name": "Ann"}}) as crm:
        crm.url = crm.url.replace("127.0.0.1", "localhost")
        source = open_http_source(HttpDirectoryOptions.model_validate(crm.options), Terms(300.0, 5.0, 3))
        silent = opened("http", gateway_options(SILENT, 80), block="email", timeout=30.0)
        async with silent as channel, stuck(channel):
            with anyio.fail_after(AT_ONCE):
                assert set(await source.look_up([7])) == {7}
                assert await connect_problem("localhost", gateway.port, None) is None
        await source.aclose()


async def test_a_host_that_was_known_is_reached_while_its_name_server_is_silent(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections go to the address that was looked up before."""
    async with opened(
        "http", gateway_options("localhost", gateway.port), block="email", timeout=30.0
    ) as channel:
        assert isinstance(await send(channel), Accepted)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("asked again within half a minute"))
        async with anyio.create_task_group() as attempts:
            for _ in range(5):
                attempts.start_soon(send, channel)
    assert len(gateway.seen) == 6


HANGING = f"""
import socket, threading, sys
import anyio
socket.getaddrinfo = lambda *args, **kwargs: threading.Event().wait()
from deliveryd.errors import NotSent
from deliveryd.http.client import build_client

async def main():
    client = build_client(timeout=0.2)
    try:
        await client.send("GET", "http://{SILENT}/")
    except NotSent as error:
        print(error)
    await client.aclose()

anyio.run(main, backend="asyncio", backend_options={{"use_uvloop": sys.argv[1] == "uvloop"}})
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_process_ends_though_a_look_up_never_does(loop: str) -> None:
    """A worker that is told to stop doesn't wait for a name server."""
    command = [sys.executable, "-c", HANGING, loop]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ended.stdout == f"no connection to {SILENT}:80 within 0.2 s\n"
