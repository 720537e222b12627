"""The HTTP client over real sockets: addresses, headers, TLS, proxies, deadlines and bounds."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSAttribute, TLSListener, TLSStream

from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http.asyncio_wire import AsyncioWire
from deliveryd.http.client import HttpClient, build_client
from deliveryd.http.stream_wire import StreamWire
from deliveryd.http.target import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import Proxy
from deliveryd.runtime import secret_file
from deliveryd.testing.gateway import Reply, Stall, open_gateway
from support.patience import PATIENCE
from support.wires import closing, serving

pytestmark = pytest.mark.anyio

LOOPS: list[Any] = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True}), ("trio", {})]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Every event loop that a client may be built for."""
    return request.param


@asynccontextmanager
async def building(**options: Any) -> AsyncIterator[HttpClient]:
    """A client, closed afterwards."""
    client = build_client(timeout=5.0, **options)
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()


# addresses and headers


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://h", ("http", "h", 80, "h", b"/")),
        ("https://h/a?b=c#d", ("https", "h", 443, "h", b"/a?b=c")),
        ("HTTP://H:8080/Ü x", ("http", "h", 8080, "h:8080", b"/%C3%9C%20x")),
        ("http://[::1]:81/", ("http", "::1", 81, "[::1]:81", b"/")),
        ("http://bücher.example/", ("http", "xn--bcher-kva.example", 80, "xn--bcher-kva.example", b"/")),
        ("http://h/a%2Fb%20c", ("http", "h", 80, "h", b"/a%2Fb%20c")),
    ],
)
def test_an_address_is_taken_apart(url: str, target: tuple[Any, ...]) -> None:
    """Scheme, host, port, authority and path, as they go on the wire."""
    assert target_of(url)[:5] == target


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h/a",
        "/a",
        "ftp://h/",
        "http://",
        "http:///a",
        "http://u:p@h/",
        "http://h:99999/",
        "http://h:0/",
        "http://h:x/",
        "http://[::1/",
        "http://h/\r\nx: y",
        "file:///etc/passwd",
    ],
)
def test_anything_else_is_no_address(url: str) -> None:
    """What can't be requested is a ValueError before anything is sent."""
    with pytest.raises(ValueError, match="address"):
        target_of(url)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-a", "1\r\nx-b: 2"),
        ("x-a", "1\n"),
        ("x-a", "\x00"),
        ("x-a", "\x7f"),
        ("x-a", "Привіт"),
        ("x a", "1"),
        ("x-a:", "1"),
        ("", "1"),
        ("x\r\n", "1"),
        ("ü", "1"),
    ],
)
async def test_a_header_can_carry_no_second_one(name: str, value: str) -> None:
    """Over every wire such a header is refused; nothing is sent, and its value isn't told."""
    async with open_gateway() as gateway, building() as client:
        with pytest.raises(ValueError, match="header") as caught:
            await client.send("GET", gateway.url, headers=[(name, value)])
        assert "Привіт" not in str(caught.value)
        assert gateway.seen == []


async def test_the_answer_comes_back_whatever_its_status() -> None:
    """A client judges nothing: redirects aren't followed, errors aren't raised."""
    async with open_gateway() as gateway, building() as client:
        gateway.script += [Reply(302, b"", (("location", f"{gateway.url}/b"),)), Reply(500, b"no")]
        assert (await client.send("GET", f"{gateway.url}/a")).status == 302
        answer = await client.send("POST", f"{gateway.url}/a", headers=[("x-a", " b\tc ")], body=b"d")
        assert (answer.status, answer.body) == (500, b"no")
        assert [seen.target for seen in gateway.seen] == ["/a", "/a"]
        assert gateway.seen[1].headers["x-a"] == "b\tc"


async def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment isn't used: only the configuration says where requests go."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with open_gateway() as gateway, building() as client:
        assert (await client.send("GET", gateway.url)).status == 200


async def test_one_request_can_have_a_deadline_of_its_own() -> None:
    """`timeout` of a request counts instead of the client's."""
    async with open_gateway() as gateway, building() as client:
        gateway.script.append(Stall())
        with pytest.raises(OutcomeUnknown, match=r"within 0\.05 s"):
            await client.send("GET", gateway.url, timeout=0.05)


async def test_answers_are_bounded() -> None:
    """A body beyond `max_body` is in doubt, one that just fits isn't."""
    async with open_gateway() as gateway, building(max_body=10) as client:
        gateway.script += [Reply(200, b"x" * 10), Reply(200, b"x" * 11)]
        assert (await client.send("GET", gateway.url)).body == b"x" * 10
        with pytest.raises(OutcomeUnknown, match="larger than 10 bytes"):
            await client.send("GET", gateway.url)


async def test_each_loop_has_its_wire(anyio_backend: tuple[str, object]) -> None:
    """The fast wire runs on asyncio; trio, and whoever needs a proxy, has the one over streams."""
    async with building() as client, building(proxy=Proxy("http://127.0.0.1:1")) as proxied:
        expected = AsyncioWire if anyio_backend[0] == "asyncio" else StreamWire
        assert isinstance(client._wire, expected)
        assert isinstance(proxied._wire, StreamWire)


async def test_a_proxy_is_asked_for_the_whole_address() -> None:
    """With a proxy of the configuration requests go there, and nowhere else."""
    async with open_gateway() as proxy, building(proxy=Proxy(proxy.url)) as client:
        assert (await client.send("GET", "http://provider.invalid/a?b")).status == 200
        assert proxy.seen[0].target == "http://provider.invalid/a?b"
        assert proxy.seen[0].headers["host"] == "provider.invalid"


async def test_a_proxy_that_refuses_the_tunnel_means_that_nothing_was_sent() -> None:
    """An https request that never got through the proxy isn't in doubt."""
    async with open_gateway() as proxy, building(proxy=Proxy(proxy.url)) as client:
        proxy.script.append(Reply(403, b""))
        with pytest.raises(NotSent):
            await client.send("POST", "https://provider.invalid/a", body=b"x")
        assert [seen.method for seen in proxy.seen] == ["CONNECT"]


# TLS

OURS = trustme.CA()
THEIRS = trustme.CA()


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    """The authority that the servers' certificates are from."""
    path = tmp_path / "ca.pem"
    OURS.cert_pem.write_to_path(str(path))
    return path


def write_client_certificate(folder: Path, authority: trustme.CA) -> TlsFiles:
    certificate = authority.issue_cert("worker@issuer.example")
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    return TlsFiles(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")


@asynccontextmanager
async def tls_server(
    authority: trustme.CA = OURS, host: str = "127.0.0.1", client_authority: trustme.CA | None = None
) -> AsyncIterator[tuple[str, list[str]]]:
    """An https server: its address, and for each request the e-mail address of the client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    if client_authority is not None:
        client_authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    clients: list[str] = []

    async def handle(stream: TLSStream) -> None:
        async with stream:
            try:
                while await stream.receive():
                    certificate = stream.extra(TLSAttribute.peer_certificate, None) or {}  # noqa: S610  # no database
                    names: Any = certificate.get("subjectAltName", ())
                    clients.extend([name for _, name in names] or [""])
                    await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            except (anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError):
                return

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port: int = listener.extra(SocketAttribute.local_port)  # noqa: S610  # no database
    tls = TLSListener(listener, context, standard_compatible=False)
    async with tls, anyio.create_task_group() as tasks:
        tasks.start_soon(tls.serve, handle)
        yield f"https://127.0.0.1:{port}/", clients
        tasks.cancel_scope.cancel()


async def test_tls_with_an_authority_of_ones_own(ca_file: Path) -> None:
    """A certificate of the configured authority is trusted, and the connection is used again."""
    async with tls_server() as (url, clients), building(tls=TlsFiles(ca_file)) as client:
        for _ in range(3):
            assert (await client.send("GET", url)).body == b"ok"
        assert clients == [""] * 3


@pytest.mark.parametrize(
    ("authority", "host"), [(THEIRS, "127.0.0.1"), (OURS, "other.example")], ids=["authority", "host name"]
)
async def test_a_certificate_that_does_not_fit_gets_nothing(
    ca_file: Path, authority: trustme.CA, host: str
) -> None:
    """A foreign authority or another host's name: nothing is sent."""
    async with tls_server(authority, host) as (url, clients), building(tls=TlsFiles(ca_file)) as client:
        with pytest.raises(NotSent):
            await client.send("POST", url, body=b"secret")
        assert clients == []


@asynccontextmanager
async def tunnelling(context: ssl.SSLContext | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that makes tunnels: its address, and the first line of each request."""
    asked: list[bytes] = []

    async def pump(source: ByteStream, sink: ByteStream) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await sink.send(await source.receive())
        await sink.aclose()

    async def handle(client: ByteStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await client.receive()
        asked.append(head.partition(b"\r\n")[0])
        host, _, port = head.split(b" ")[1].decode().rpartition(":")
        async with client, await anyio.connect_tcp(host, int(port)) as server:
            await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with anyio.create_task_group() as both:
                both.start_soon(pump, client, server)
                both.start_soon(pump, server, client)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port: int = listener.extra(SocketAttribute.local_port)  # noqa: S610  # no database
    listening: Any = (
        listener if context is None else TLSListener(listener, context, standard_compatible=False)
    )
    async with listening, anyio.create_task_group() as tasks:
        tasks.start_soon(listening.serve, handle)
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{port}", asked
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("is_secure", [False, True], ids=["http", "https"])
async def test_https_requests_share_a_tunnel_through_the_proxy(
    ca_file: Path, is_secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy sees where it leads; TLS is with the server, and with a proxy that has an https address."""
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if is_secure else None
    if context is not None:
        OURS.issue_cert("127.0.0.1").configure_cert(context)
    async with (
        tls_server() as (url, clients),
        tunnelling(context) as (proxy, asked),
        building(tls=TlsFiles(ca_file), proxy=Proxy(proxy)) as client,
    ):
        for _ in range(3):
            assert (await client.send("POST", url, body=b"x")).body == b"ok"
        assert asked == [f"CONNECT {url[8:-1]} HTTP/1.1".encode()]
        assert clients == [""] * 3


@pytest.mark.parametrize("answer", [b"", b"220 mail\r\n", b"HTTP/1.1 200"])
async def test_a_proxy_that_makes_no_tunnel_means_that_nothing_was_sent(answer: bytes) -> None:
    """Whatever it says or leaves out, the request has not left."""
    async with serving(closing(answer)) as proxy, building(proxy=Proxy(str(proxy.target()))) as client:
        with pytest.raises(NotSent, match="through the proxy"):
            await client.send("POST", "https://provider.invalid/a", body=b"x")
    assert b"CONNECT" in proxy.requests[0]


async def test_without_a_ca_file_the_systems_authorities_count() -> None:
    """An authority that nobody configured isn't trusted."""
    async with tls_server() as (url, clients), building() as client:
        with pytest.raises(NotSent):
            await client.send("GET", url)
        assert clients == []


async def test_a_client_certificate_is_shown(ca_file: Path, tmp_path: Path) -> None:
    """A server that asks for a certificate gets the configured one."""
    files = write_client_certificate(tmp_path, OURS)
    async with tls_server(client_authority=OURS) as (url, clients), building(tls=files) as client:
        assert (await client.send("GET", url)).body == b"ok"
        assert clients == ["worker@issuer.example"]


async def test_without_the_certificate_that_the_server_wants_there_is_no_answer(ca_file: Path) -> None:
    """In TLS 1.3 a client hears of it only after its request, so that this may be in doubt."""
    async with tls_server(client_authority=OURS) as (url, clients), building(tls=TlsFiles(ca_file)) as client:
        with pytest.raises((NotSent, OutcomeUnknown)):
            await client.send("GET", url)
        assert clients == []


async def test_http_to_a_tls_port_and_the_other_way_round(ca_file: Path) -> None:
    """Both are told, neither hangs: https to a plain port surely sent nothing."""
    async with open_gateway() as plain, building(tls=TlsFiles(ca_file)) as client:
        with pytest.raises(NotSent):
            await client.send("GET", plain.url.replace("http:", "https:"), timeout=0.3)
    async with tls_server() as (url, _), building() as client:
        with pytest.raises(OutcomeUnknown):
            await client.send("GET", url.replace("https:", "http:"), timeout=0.3)


async def test_unusable_tls_files_are_told_when_the_client_is_built(tmp_path: Path) -> None:
    """A missing or broken file is a mistake of the configuration, not an outage of the other side."""
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for files in (
        TlsFiles(tmp_path / "missing.pem"),
        TlsFiles(broken),
        TlsFiles(None, broken, broken),
        TlsFiles(None, tmp_path / "missing.pem"),
    ):
        with pytest.raises(OSError):  # noqa: PT011 - which one it is depends on the TLS library
            build_client(timeout=1.0, tls=files)


async def test_a_replaced_client_certificate_is_shown_without_losing_a_request(
    ca_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way keeps its connection, which is closed afterwards; half of a new pair isn't used."""
    monkeypatch.setattr(secret_file, "LOOK_EVERY", 0)
    files = write_client_certificate(tmp_path, OURS)
    cert, key = (tmp_path / "cert.pem"), (tmp_path / "key.pem")
    answers: list[bytes] = []
    async with (
        gated_tls_server(OURS) as there,
        building(tls=files) as client,
        anyio.create_task_group() as tasks,
    ):
        with anyio.fail_after(PATIENCE):

            async def ask_slowly() -> None:
                answers.append((await client.send("GET", f"{there.url}slow")).body)

            tasks.start_soon(ask_slowly)
            await there.asked_slowly.wait()
            new = OURS.issue_cert("next@issuer.example")
            new.cert_chain_pems[0].write_to_path(str(cert))
            assert (await client.send("GET", there.url)).body == b"worker@issuer.example"
            new.private_key_pem.write_to_path(str(key))
            assert (await client.send("GET", there.url)).body == b"next@issuer.example"
            there.go.set()
            await there.slow_one_left.wait()
    assert answers == [b"worker@issuer.example"]


class GatedServer:
    """A server that answers with the name in the client's certificate, to /slow only when it may."""

    def __init__(self) -> None:
        self.url = ""
        self.asked_slowly, self.go, self.slow_one_left = anyio.Event(), anyio.Event(), anyio.Event()

    async def handle(self, stream: TLSStream) -> None:
        """Answer the requests of one connection."""
        slow = False
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError):
                while request := await stream.receive():
                    if slow := b"/slow" in request:
                        self.asked_slowly.set()
                        await self.go.wait()
                    certificate: Any = stream.extra(TLSAttribute.peer_certificate)  # noqa: S610  # no database
                    [(_, name)] = certificate["subjectAltName"]
                    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(name)}\r\n\r\n"
                    await stream.send((head + name).encode())
        if slow:
            self.slow_one_left.set()


@asynccontextmanager
async def gated_tls_server(authority: trustme.CA) -> AsyncIterator[GatedServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    there = GatedServer()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    there.url = f"https://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/"  # noqa: S610  # no database
    tls = TLSListener(listener, context, standard_compatible=False)
    async with tls, anyio.create_task_group() as tasks:
        tasks.start_soon(tls.serve, there.handle)
        yield there
        tasks.cancel_scope.cancel()
