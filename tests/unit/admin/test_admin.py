"""The administrative pages over real sockets, with the server that carries them."""

import contextlib
import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import anyio
import anyio.abc
import anyio.to_thread
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from deliveryd.admin.app import admin_app
from deliveryd.admin.viewers import MOST_VIEWERS
from deliveryd.commands.watch.quick_health import check_health, health_url
from deliveryd.errors import AddressInUse, ConfigError
from deliveryd.http import server
from deliveryd.http.addresses import bind, parse_listen, url_of
from deliveryd.metrics import Metrics
from deliveryd.telemetry.overview import Failure, as_json
from support.overviews import IDLE, Worker, provider
from support.patience import PATIENCE
from support.plain_http import NO_TLS


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The server is bound to asyncio, with uvloop in production."""
    return "asyncio", {"use_uvloop": request.param}


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """The application on a free port, for as long as the block lasts."""
    bound, stop = bind("admin.listen", listen), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, app, bound, stop)
        yield url_of(bound)
        stop.set()


def metrics() -> Metrics:
    return Metrics(["sms", "email"], "0.1.0")


# ---- pages


@pytest.mark.anyio
async def test_the_pages_of_a_healthy_worker() -> None:
    """Each answers 200 in its own form, and may not be cached or framed."""
    async with (
        serving(admin_app(Worker(), metrics())) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url) as client,
    ):
        index = await client.get("/")
        assert index.headers["content-type"] == "text/html; charset=utf-8"
        livez = await client.get("/livez")
        assert livez.text == "alive\nintake turned 0.2 s ago\nreporting turned 1.5 s ago\n"
        assert (await client.get("/readyz")).text == "ready\ntaking work\n"
        status = await client.get("/status")
        assert status.json() == as_json(IDLE)
        assert status.headers["content-type"] == "application/json"
        numbers = await client.get("/metrics")
        assert numbers.headers["content-type"].startswith("text/plain; version=")
        for page in (index, livez, status, numbers):
            assert page.status_code == 200
            assert page.headers["x-content-type-options"] == "nosniff"
            assert page.headers["cache-control"] == "no-store"
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert "server" not in page.headers


@pytest.mark.anyio
async def test_a_reason_that_is_no_unicode_keeps_no_page_from_being_shown() -> None:
    """Adapters of other packages give reasons."""
    failed = provider("sms", last_failure=Failure("try_again", "no \ud800", IDLE.at))
    app = admin_app(Worker(shown=dataclasses.replace(IDLE, providers=[failed])), metrics())
    async with serving(app) as url, httpx.AsyncClient(verify=NO_TLS, base_url=url) as client:
        assert "no \\ud800" in (await client.get("/")).text
        assert (await client.get("/status")).json()["providers"][0]["last_failure"]["reason"] == "no \ud800"


@pytest.mark.anyio
async def test_a_stuck_or_unready_worker_answers_503() -> None:
    """Each check fails on its own and says why."""
    worker = Worker(is_alive=False, is_ready=False)
    async with (
        serving(admin_app(worker, metrics())) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url) as client,
    ):
        livez, readyz = await client.get("/livez"), await client.get("/readyz")
        assert (livez.status_code, livez.text.splitlines()[0]) == (503, "stuck")
        assert (readyz.status_code, readyz.text) == (503, "not ready\nthe outbox is full\n")
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.anyio
async def test_the_pages_only_read() -> None:
    """Nothing can be posted, and there is nothing beside the pages."""
    async with (
        serving(admin_app(Worker(), metrics())) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url) as client,
    ):
        assert (await client.post("/status", content=b"x" * 1_000_000)).status_code == 405
        assert (await client.get("/docs")).status_code == 404
        head = await client.head("/livez")
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:9470", "192.0.2.7:9470", "[::1]:9470", "[2001:db8::7]", "localhost:9470"),
        *("LOCALHOST", "localhost.", "worker.internal", "Worker.Internal:9470"),
    ],
)
@pytest.mark.anyio
async def test_the_pages_are_shown_to_who_asks_by_address_or_a_name_that_is_allowed(host: str) -> None:
    """Probes and scrapers come by address; a name is what the operator says it is."""
    app = admin_app(Worker(), metrics(), ["worker.internal"])
    async with (
        serving(app) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url, headers={"Host": host}) as client,
    ):
        assert (await client.get("/status")).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:9470", "127.0.0.1.evil.example", "localhost.evil.example", "127.1"),
        *(
            "notworker.internal",
            "x.worker.internal",
            "2130706433",
            "0x7f000001",
            "127.0.0.1@evil.example",
            "",
        ),
        *("[evil.example]", "[127.0.0.1]", "::1", "[::1", "127.0.0.1:80:90", "127.0.0.1, evil.example"),
    ],
)
@pytest.mark.anyio
async def test_a_web_page_whose_name_leads_here_reads_nothing(host: str) -> None:
    """Its name is the Host of its requests (DNS rebinding); the answer names the key for those who may."""
    app = admin_app(Worker(), metrics(), ["worker.internal"])
    async with (
        serving(app) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url, headers={"Host": host}) as client,
    ):
        for path in ("/", "/livez", "/readyz", "/metrics", "/status", "/none"):
            answer = await client.get(path)
            assert answer.status_code == 421
            assert "admin.allowed_hosts" in answer.text
            assert "version" not in answer.text


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.anyio
async def test_a_web_page_of_another_site_cannot_take_the_places_of_viewers(site: str) -> None:
    """It couldn't read a stream, but hold it open; a link to the page works."""
    foreign = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "iframe"}
    async with (
        serving(admin_app(Worker(), metrics())) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url) as client,
    ):
        for path in ("/page/stream", "/status/stream", "/tail", "/metrics", "/"):
            assert (await client.get(path, headers=foreign)).status_code == 403
        link = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "document"}
        assert (await client.get("/", headers=link)).status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        "GET /status HTTP/1.1\r\n",
        "GET /status HTTP/1.0\r\n",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n",
        "GET /status HTTP/1.0\r\nHost: evil.example\r\nHost: localhost\r\n",
    ],
)
@pytest.mark.anyio
async def test_a_missing_or_doubled_host_is_refused(head: str) -> None:
    """Nobody can tell which of two was meant."""
    async with serving(admin_app(Worker(), metrics())) as url:
        host, port = parse_listen(url.removeprefix("http://"))
        async with await anyio.connect_tcp(host, port) as client:
            await client.send(f"{head}\r\n".encode())
            with anyio.fail_after(PATIENCE):
                answer = await _until_closed(client)
    assert b" 400 " in answer.splitlines()[0]
    assert b"one Host header" in answer
    assert b"version" not in answer


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/livez", b" 200 "),
        ("HTTP://LOCALHOST/livez", b" 200 "),
        ("http://evil.example/livez", b" 400 "),
        ("http://localhost@evil.example/livez", b" 400 "),
        ("http://localhost:1/livez", b" 400 "),
    ],
)
@pytest.mark.anyio
async def test_a_target_that_is_an_address_names_the_same_host(target: str, status: bytes) -> None:
    """A proxy in front may have decided by either of them."""
    async with serving(admin_app(Worker(), metrics())) as url:
        host, port = parse_listen(url.removeprefix("http://"))
        async with await anyio.connect_tcp(host, port) as client:
            await client.send(
                f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            with anyio.fail_after(PATIENCE):
                answer = await _until_closed(client)
    assert status in answer.splitlines()[0]


# ---- server


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
@pytest.mark.anyio
async def test_a_free_port_on_any_family_is_bound_and_told(listen: str) -> None:
    """Port 0 becomes a real one, and the address that is told can be asked as it stands."""
    async with serving(admin_app(Worker(), metrics()), listen) as url:
        assert re.fullmatch(r"http://(127\.0\.0\.1|\[::1\]):[1-9]\d+", url)
        assert (await anyio.to_thread.run_sync(check_health, url))[0]


def test_an_address_in_use_names_the_key() -> None:
    """The operator reads which key of the configuration is meant and what is the matter."""
    with bind("admin.listen", "127.0.0.1:0") as first:
        listen = url_of(first).removeprefix("http://")
        with pytest.raises(
            AddressInUse, match=f"receipts.listen: can't listen on '{listen}': Address already"
        ):
            bind("receipts.listen", listen)


@pytest.mark.parametrize(
    "listen", ["", "9470", "localhost", "::1:9470", "http://127.0.0.1:1", "[::1]", "a b:1"]
)
def test_what_is_no_address_names_the_key(listen: str) -> None:
    """A mistyped address is a mistake of the configuration, with an example of a right one."""
    with pytest.raises(ConfigError, match=r"^admin.listen: can't listen on '.*': expected HOST:PORT"):
        bind("admin.listen", listen)


@pytest.mark.parametrize("port", [65536, 10**19])
def test_a_port_that_there_cannot_be_is_told_as_such(port: int) -> None:
    """The address is written well otherwise, so its form isn't blamed."""
    with pytest.raises(ConfigError, match=r": the port must be between 0 and 65535$"):
        bind("admin.listen", f"127.0.0.1:{port}")


def test_addresses_are_read() -> None:
    """IPv6 stands in brackets."""
    assert parse_listen("127.0.0.1:80") == ("127.0.0.1", 80)
    assert parse_listen("[::]:9470") == ("::", 9470)


@pytest.mark.anyio
async def test_stopping_is_quick_even_with_open_connections() -> None:
    """A client that keeps its connection, and one that never finishes its request, don't hold up the end."""
    async with (
        serving(admin_app(Worker(), metrics())) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url) as client,
    ):
        assert (await client.get("/livez")).status_code == 200
        host, port = parse_listen(url.removeprefix("http://"))
        with socket.create_connection((host, port)) as slow:
            slow.sendall(b"GET /livez HTTP/1.1\r\n")
            assert (await client.get("/livez")).status_code == 200
            began = time.monotonic()
    assert time.monotonic() - began < 1


@pytest.mark.slow
@pytest.mark.anyio
async def test_stopping_leaves_a_hanging_request_behind() -> None:
    """A request whose answer never comes gets a second, not more."""
    asked = anyio.Event()

    async def hang(_request: Request) -> Response:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with serving(Starlette(routes=[Route("/", hang)])) as url:
        host, port = parse_listen(url.removeprefix("http://"))
        client = await anyio.connect_tcp(host, port)
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
        began = time.monotonic()
    assert time.monotonic() - began < 3
    await client.aclose()


@pytest.mark.anyio
async def test_cancelling_closes_the_socket() -> None:
    """After a cancelled server its address is free at once, and its clients are cut off."""
    bound = bind("admin.listen", "127.0.0.1:0")
    listen = url_of(bound).removeprefix("http://")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, admin_app(Worker(), metrics()), bound, anyio.Event())
        async with httpx.AsyncClient(verify=NO_TLS) as client:
            assert (await client.get(f"http://{listen}/livez")).status_code == 200
        tasks.cancel_scope.cancel()
    bind("admin.listen", listen).close()


@pytest.mark.anyio
async def test_signals_stay_with_the_supervisor() -> None:
    """Serving leaves the handlers of the process as they are."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with (
        serving(admin_app(Worker(), metrics())) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url) as client,
    ):
        assert (await client.get("/livez")).status_code == 200
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.anyio
async def test_a_client_that_stays_silent_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without a whole request don't occupy places for ever."""
    monkeypatch.setattr(server, "_REQUEST_TIMEOUT", 0.05)
    async with serving(admin_app(Worker(), metrics())) as url:
        host, port = parse_listen(url.removeprefix("http://"))
        for beginning in (b"", b"GET /livez HT", b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"):
            async with await anyio.connect_tcp(host, port) as client:
                if beginning:
                    await client.send(beginning)
                with (
                    anyio.fail_after(PATIENCE),
                    pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)),
                ):
                    await client.receive()


@pytest.mark.anyio
async def test_an_endless_head_is_cut_off() -> None:
    """A request whose head goes beyond 16 KiB is answered with an error, not collected."""
    async with serving(admin_app(Worker(), metrics())) as url:
        host, port = parse_listen(url.removeprefix("http://"))
        async with await anyio.connect_tcp(host, port) as client:
            await client.send(b"GET /livez HTTP/1.1\r\nX-Long: " + b"x" * 20_000)
            with anyio.fail_after(PATIENCE):
                assert (await client.receive()).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /livez HTTP/1.1\r\n" + b"X-Short: x\r\n" * 2_000,
        b"GET /livez?",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Long: ",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    ],
    ids=["many headers", "a path", "a trailer", "an extension of a chunk"],
)
@pytest.mark.anyio
async def test_nothing_else_without_an_end_is_collected(beginning: bytes) -> None:
    """Whatever it is that doesn't end, it is answered with an error before much of it is there."""
    async with serving(Starlette(routes=[Route("/livez", _read_it_all, methods=["POST"])])) as url:
        host, port = parse_listen(url.removeprefix("http://"))
        async with await anyio.connect_tcp(host, port) as client:
            with contextlib.suppress(anyio.BrokenResourceError):
                await client.send(beginning + b"x" * (1 << 20))
            with anyio.fail_after(PATIENCE):
                assert (await _until_closed(client))[:12] in (b"HTTP/1.1 400", b"")


@pytest.mark.anyio
async def test_requests_sent_ahead_are_answered_in_turn_up_to_a_bound() -> None:
    """Some may be sent before the first is answered; thousands in one packet are not collected."""
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serving(admin_app(Worker(), metrics())) as url:
        host, port = parse_listen(url.removeprefix("http://"))
        async with await anyio.connect_tcp(host, port) as client:
            await client.send(request * 15 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            with anyio.fail_after(PATIENCE):
                assert (await _until_closed(client)).count(b"HTTP/1.1 200") == 16
        async with await anyio.connect_tcp(host, port) as client:
            await client.send(request * 1_000)
            with anyio.fail_after(PATIENCE):
                assert b"HTTP/1.1 400" in await _until_closed(client)


@pytest.mark.anyio
async def test_a_server_that_ends_answers_the_next_request_of_a_connection_in_use() -> None:
    """With the word that it was the last one: a connection closed while idle may cross a request."""
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    bound, stop = bind("admin.listen", "127.0.0.1:0"), anyio.Event()
    host, port = parse_listen(url_of(bound).removeprefix("http://"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, admin_app(Worker(), metrics()), bound, stop)
        async with await anyio.connect_tcp(host, port) as client:
            await client.send(request)
            assert b"HTTP/1.1 200" in await client.receive()
            stop.set()
            await _refused(host, port)
            await client.send(request)
            with anyio.fail_after(PATIENCE):
                last = await _until_closed(client)
    assert b"HTTP/1.1 200" in last
    assert b"connection: close" in last.lower()


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
@pytest.mark.parametrize("packets", [1, 2])
@pytest.mark.anyio
async def test_an_offer_of_another_protocol_is_passed_over(offer: str, packets: int) -> None:
    """Some clients offer HTTP/2 with their first request: it is answered as it stands, and so is the next."""
    request = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
    head = f"{request}Connection: Upgrade\r\nUpgrade: {offer}\r\n\r\n"
    following = f"{request}Connection: close\r\n\r\nbody"
    async with serving(Starlette(routes=[Route("/", _read_it_all, methods=["POST"])])) as url:
        host, port = parse_listen(url.removeprefix("http://"))
        async with await anyio.connect_tcp(host, port) as client:
            for packet in [head + "body" + following] if packets == 1 else [head, "body", following]:
                await client.send(packet.encode())
            with anyio.fail_after(PATIENCE):
                answer = await _until_closed(client)
            assert [answer.count(part) for part in (b"HTTP/1.1 200", b"\r\n\r\nbody")] == [2, 2]


async def _read_it_all(request: Request) -> Response:
    return Response(await request.body())


async def _refused(host: str, port: int) -> None:
    """Return once no new connection is accepted."""
    with contextlib.suppress(OSError):
        while True:
            await (await anyio.connect_tcp(host, port)).aclose()


async def _until_closed(client: anyio.abc.SocketStream) -> bytes:
    received = b""
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            received += await client.receive()
    return received


@pytest.mark.anyio
async def test_the_longest_silent_connection_gives_way_to_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds connections open without a word keeps nobody else from being answered."""
    monkeypatch.setattr(server, "MOST_UNFINISHED", 3)
    async with serving(admin_app(Worker(), metrics())) as url:
        host, port = parse_listen(url.removeprefix("http://"))
        idle = [await anyio.connect_tcp(host, port) for _ in range(3)]
        async with httpx.AsyncClient(verify=NO_TLS, base_url=url) as client:
            assert (await client.get("/livez")).status_code == 200
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await idle[0].receive()
        for connection in idle:
            await connection.aclose()


# ---- streams


@pytest.mark.parametrize("path", ["/status/stream", "/page/stream"])
@pytest.mark.anyio
async def test_a_stream_that_is_read_goes_on_beyond_the_limit_of_a_request(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A viewer is cut off only when it stops to read."""
    monkeypatch.setattr(server, "_REQUEST_TIMEOUT", 0.5)
    async with (
        serving(admin_app(Worker(), metrics())) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url) as client,
        client.stream("GET", path) as answer,
    ):
        assert answer.headers["content-type"] == "text/event-stream"
        lines = (line async for line in answer.aiter_lines() if line.startswith("data: "))
        assert [json.loads((await anext(lines)).removeprefix("data: ")) is not None for _ in range(3)]


@pytest.mark.anyio
async def test_a_viewer_who_left_frees_a_place() -> None:
    async with (
        serving(admin_app(Worker(), metrics())) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url) as client,
    ):
        for _ in range(MOST_VIEWERS + 1):  # one after the other
            async with client.stream("GET", "/page/stream") as answer:
                assert answer.status_code == 200


@pytest.mark.anyio
async def test_a_viewer_who_left_frees_a_place_whatever_else_it_requested() -> None:
    """Requests behind a stream, which never get their turn, don't hide that the connection is lost."""
    stream = b"GET /page/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with (
        serving(admin_app(Worker(), metrics())) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url) as client,
    ):
        for _ in range(MOST_VIEWERS):
            viewer = await anyio.connect_tcp(*parse_listen(url.removeprefix("http://")))
            await viewer.send(stream + stream)
            await viewer.receive()
            await viewer.aclose()
        request, status = client.build_request("GET", "/page/stream"), 503
        with anyio.move_on_after(10):
            while status != 200:
                answer = await client.send(request, stream=True)
                status = answer.status_code
                await answer.aclose()
        assert status == 200


@pytest.mark.anyio
async def test_stopping_ends_streams_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """They would go on for ever; their end is no error for the log."""
    async with httpx.AsyncClient(verify=NO_TLS) as client:
        async with serving(admin_app(Worker(), metrics())) as url:
            answer = await client.send(client.build_request("GET", f"{url}/page/stream"), stream=True)
            await anext(answer.aiter_lines())
            began = time.monotonic()
        assert time.monotonic() - began < 1
        await answer.aclose()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# ---- health


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:9470", "http://127.0.0.1:9470"),
        ("0.0.0.0:9470", "http://127.0.0.1:9470"),
        ("[::]:9470", "http://[::1]:9470"),
        ("[::1]:9470", "http://[::1]:9470"),
        ("localhost:9470", "http://localhost:9470"),
    ],
)
def test_a_worker_on_all_addresses_is_asked_on_the_loopback(listen: str, url: str) -> None:
    """A health check runs beside the worker."""
    assert health_url(listen) == url


def test_a_port_that_nobody_knows_cannot_be_asked() -> None:
    """Port 0 is told in the log only."""
    with pytest.raises(ValueError, match="port 0"):
        health_url("127.0.0.1:0")


@pytest.mark.anyio
async def test_health_tells_alive_from_stuck() -> None:
    """The client of the health check repeats what /livez says."""
    worker = Worker()
    async with serving(admin_app(worker, metrics())) as url:
        assert (await anyio.to_thread.run_sync(check_health, url))[0]
        worker.is_alive = False
        alive, text = await anyio.to_thread.run_sync(check_health, url)
    assert not alive
    assert text.startswith("stuck")


@pytest.mark.slow
def test_health_without_an_answer_is_no_health() -> None:
    """Nobody there, and somebody who doesn't speak HTTP, are both unhealthy, in a sentence."""
    with bind("admin.listen", "127.0.0.1:0") as bound:
        url = url_of(bound)
    alive, text = check_health(url)
    assert not alive
    assert text.startswith(f"no answer from {url}: ")

    reader = (
        "import socket\n"
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    print(server.getsockname()[1], flush=True)\n"
        "    connection, _ = server.accept()\n"
        "    with connection:\n"
        "        connection.recv(1000)\n"
        "        connection.sendall(b'220 hello\\r\\n')\n"
    )
    with subprocess.Popen([sys.executable, "-c", reader], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert check_health(f"http://127.0.0.1:{port}")[0] is False
