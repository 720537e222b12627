"""Both wires against servers that answer byte for byte: never sent, in doubt, or answered."""

from __future__ import annotations

import gzip
import re
import socket
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeAlias

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute, SocketStream

from deliveryd.errors import BrokenOff, NotSent, OutcomeUnknown, TooLate
from deliveryd.http import asyncio_wire
from deliveryd.http.asyncio_wire import MAX_HEAD, AsyncioWire
from deliveryd.http.client import target_of
from deliveryd.http.httpx_wire import HttpxWire, open_transport
from deliveryd.http.wire import Target, Wire, WireResponse

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Kind(NamedTuple):
    """A wire, and the event loop that it runs on."""

    backend: tuple[str, dict[str, Any]]
    make: Callable[[], Wire]


def _own() -> Wire:
    return AsyncioWire(ssl.create_default_context)


def _httpx() -> Wire:
    return HttpxWire(open_transport(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), None))


OWN = [
    pytest.param(Kind(("asyncio", {}), _own), id="own-asyncio"),
    pytest.param(Kind(("asyncio", {"use_uvloop": True}), _own), id="own-uvloop"),
]
HTTPX = [
    pytest.param(Kind(("asyncio", {}), _httpx), id="httpx-asyncio"),
    pytest.param(Kind(("trio", {}), _httpx), id="httpx-trio"),
]
own_only = pytest.mark.parametrize("kind", OWN, indirect=True)


@pytest.fixture(params=[*OWN, *HTTPX])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each wire on each of its event loops."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def anyio_backend(kind: Kind) -> tuple[str, dict[str, Any]]:
    return kind.backend


@pytest.fixture
async def wire(kind: Kind, anyio_backend: object) -> AsyncIterator[Wire]:
    """A wire that is closed after the test."""
    made = kind.make()
    yield made
    with anyio.CancelScope(shield=True):
        await made.aclose()


class Peer:
    """One connection, as the server sees it; `number` counts them from 1."""

    def __init__(self, stream: SocketStream, number: int, server: Server) -> None:
        self._stream = stream
        self._server = server
        self._buffer = b""
        self.number = number

    async def request(self) -> bytes:
        """Read one whole request."""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += await self._stream.receive()
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        size = int(length[1]) if length else 0
        while len(rest) < size:
            rest += await self._stream.receive()
        self._buffer = rest[size:]
        whole = head + b"\r\n\r\n" + rest[:size]
        self._server.requests.append(whole)
        return whole

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def hung_up(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while True:
                await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self._server.hang_ups += 1
            self._server.hung_up.set()

    def reset_at_close(self) -> None:
        """Let the connection end with a reset instead of an orderly end."""
        raw = self._stream.extra(SocketAttribute.raw_socket)  # noqa: S610  # no database
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Server:
    """What came in over all connections."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0
        self.hang_ups = 0
        self.hung_up = anyio.Event()
        self.requests: list[bytes] = []

    def target(self, path: str = "/") -> Target:
        return target_of(f"http://127.0.0.1:{self.port}{path}")


Serve: TypeAlias = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Server]:
    """A server that lets `serve` handle each connection, and closes it afterwards."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    server = Server(listener.extra(SocketAttribute.local_port))  # noqa: S610  # no database

    async def handle(stream: SocketStream) -> None:
        server.connections += 1
        async with stream:
            try:
                await serve(Peer(stream, server.connections, server))
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        with anyio.fail_after(20):
            yield server
        tasks.cancel_scope.cancel()


def answering(answer: bytes) -> Serve:
    """Answer every request with these bytes, and keep the connection."""

    async def serve(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(answer)

    return serve


def closing(answer: bytes) -> Serve:
    """Answer one request with these bytes, and close the connection."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    return serve


async def ask(
    wire: Wire,
    target: Target,
    *,
    body: bytes = b"",
    deadline: float = 10.0,
    max_body: int = 1 << 20,
) -> WireResponse:
    method = "POST" if body else "GET"
    return await wire.exchange(method, target, [(b"x-a", b"1")], body, deadline=deadline, max_body=max_body)


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    lines = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + lines + b"0\r\n" + trailer + b"\r\n"


def encoded(encoding: str, body: bytes) -> bytes:
    """An answer that is encoded, whoever asked for it."""
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def bytewise(encoding: str, body: bytes) -> bytes:
    """The same in chunks of one byte each."""
    chunks = chunked(*(bytes([byte]) for byte in body))
    return chunks.replace(b"\r\n", b"\r\ncontent-encoding: " + encoding.encode() + b"\r\n", 1)


# where both wires must agree

ANSWERED = {
    "a length": (answering(OK), 200, b"ok"),
    "no body": (answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), 200, b""),
    "204": (answering(b"HTTP/1.1 204 No Content\r\n\r\n"), 204, b""),
    "304": (answering(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n"), 304, b""),
    "no reason": (answering(b"HTTP/1.1 503 \r\ncontent-length: 0\r\n\r\n"), 503, b""),
    "a redirect": (answering(b"HTTP/1.1 302 Found\r\nlocation: /b\r\ncontent-length: 0\r\n\r\n"), 302, b""),
    "chunks": (answering(chunked(b"one", b"two")), 200, b"onetwo"),
    "a trailer": (answering(chunked(b"one", trailer=b"x-sum: 1\r\n")), 200, b"one"),
    "until the end": (closing(b"HTTP/1.1 200 OK\r\n\r\nall of it"), 200, b"all of it"),
    "announced end": (closing(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it"), 200, b"all of it"),
    "close and length": (
        closing(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"),
        200,
        b"ok",
    ),
    "HTTP/1.0": (closing(b"HTTP/1.0 200 OK\r\n\r\nold"), 200, b"old"),
    "HTTP/1.0 with a length": (closing(b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nold"), 200, b"old"),
    "100 before it": (answering(b"HTTP/1.1 100 Continue\r\n\r\n" + OK), 200, b"ok"),
    "103 before it": (answering(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK), 200, b"ok"),
    "identity": (
        answering(b"HTTP/1.1 200 OK\r\nContent-Encoding: Identity\r\ncontent-length: 2\r\n\r\nok"),
        200,
        b"ok",
    ),
    "gzip": (answering(encoded("gzip", gzip.compress(b"x" * 64))), 200, b"x" * 64),
    "x-gzip": (answering(encoded("X-GZIP", gzip.compress(b"ok"))), 200, b"ok"),
    "gzip byte by byte": (answering(bytewise("gzip", gzip.compress(b"one by one"))), 200, b"one by one"),
    "gzip of two members": (
        answering(encoded("gzip", gzip.compress(b"a") + gzip.compress(b"b"))),
        200,
        b"ab",
    ),
    "gzip of nothing": (answering(encoded("gzip", gzip.compress(b""))), 200, b""),
    "gzip without a body": (answering(encoded("gzip", b"")), 200, b""),
    "gzip until the end": (
        closing(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"all of it")),
        200,
        b"all of it",
    ),
    "gzip of a 304": (answering(b"HTTP/1.1 304 No\r\ncontent-encoding: gzip\r\n\r\n"), 304, b""),
    "deflate": (answering(encoded("deflate", zlib.compress(b"ok"))), 200, b"ok"),
    "deflate byte by byte": (answering(bytewise("deflate", zlib.compress(b"ok"))), 200, b"ok"),
    "deflate without its header": (answering(bytewise("deflate", zlib.compress(b"ok")[2:-4])), 200, b"ok"),
    "the largest body": (
        answering(b"HTTP/1.1 200 OK\r\ncontent-length: 64\r\n\r\n" + b"x" * 64),
        200,
        b"x" * 64,
    ),
}


@pytest.mark.parametrize("case", ANSWERED)
async def test_an_answer_is_read_whole(wire: Wire, case: str) -> None:
    """Whatever form a whole answer has, its status and its body are what the server sent."""
    serve, status, body = ANSWERED[case]
    async with serving(serve) as server:
        answer = await ask(wire, server.target(), max_body=64)
        assert (answer.status, answer.body) == (status, body)


def _resetting(first: bytes) -> Serve:
    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send(first)
        peer.reset_at_close()

    return serve


HEAD = b"HTTP/1.1 200 OK\r\n"
IN_DOUBT = {
    "nothing": closing(b""),
    "a cut status line": closing(b"HTTP/1.1 20"),
    "a cut head": closing(HEAD + b"content-le"),
    "a cut body": closing(HEAD + b"content-length: 10\r\n\r\nhalf"),
    "a missing body": closing(HEAD + b"content-length: 10\r\n\r\n"),
    "a cut chunk": closing(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nab"),
    "a missing last chunk": closing(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n"),
    "a chunk of no size": closing(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n"),
    "only 100": closing(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "garbage": closing(b"\x16\x03\x01\x02\x00 hello\r\n\r\n"),
    "another protocol": closing(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "two lengths": closing(HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\nok!"),
    "gzip that breaks off": closing(encoded("gzip", gzip.compress(b"x" * 50)[:-1])),
    "gzip that breaks off in its head": closing(encoded("gzip", b"\x1f\x8b")),
    "gzip that is none": closing(encoded("gzip", b"plain text")),
    "gzip with a wrong sum": closing(encoded("gzip", gzip.compress(b"ok")[:-8] + bytes(8))),
    "more behind gzip": closing(encoded("gzip", gzip.compress(b"ok") + b"more")),
    "more behind deflate": closing(encoded("deflate", zlib.compress(b"ok") + zlib.compress(b"more"))),
    "half of deflate": closing(encoded("deflate", b"x")),
    "gzip of too much": closing(encoded("gzip", gzip.compress(bytes(65)))),
    "brotli": closing(encoded("br", b"\x0b\x01\x80ok\x03")),
    "gzip twice": closing(encoded("gzip, gzip", gzip.compress(gzip.compress(b"ok")))),
    "too much with a length": closing(HEAD + b"content-length: 65\r\n\r\n" + b"x" * 65),
    "too much in chunks": closing(chunked(*[b"x" * 13] * 5)),
    "too much until the end": closing(HEAD + b"\r\n" + b"x" * 65),
    "too large a head": closing(HEAD + b"x-a: " + b"x" * (4 * MAX_HEAD) + b"\r\ncontent-length: 2\r\n\r\nok"),
    "a reset before anything": _resetting(b""),
    "a reset in the head": _resetting(b"HTTP/1.1 200"),
    "a reset in a body until the end": _resetting(HEAD + b"\r\nhalf of it"),
}


@pytest.mark.parametrize("case", IN_DOUBT)
async def test_anything_less_than_a_whole_answer_leaves_the_outcome_unknown(wire: Wire, case: str) -> None:
    """The request left; that the answer can't be used doesn't mean that nobody acted on it."""
    async with serving(IN_DOUBT[case]) as server:
        with pytest.raises(OutcomeUnknown):
            await ask(wire, server.target(), max_body=64)
        assert len(server.requests) == 1


PROXY = b"HTTP/1.1 407 No\r\nRetry-After: 7\r\n"
BROKEN_OFF = {
    "a cut body": (closing(PROXY + b"content-length: 10\r\n\r\nhalf"), b"half"),
    "a reset in the body": (_resetting(PROXY + b"content-length: 10\r\n\r\n"), b""),
    "a reset in a body until the end": (_resetting(b"HTTP/1.0 407 No\r\nRetry-After: 7\r\n\r\n"), b""),
    "a cut chunk": (closing(PROXY + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n5\r\ncd"), b"abcd"),
    "a chunk of no size": (closing(PROXY + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\n"), b"ab"),
    "too much": (closing(PROXY + b"content-length: 65\r\n\r\n" + b"x" * 65), b"x" * 64),
    "compressed": (closing(PROXY + b"content-encoding: gzip\r\ncontent-length: 1\r\n\r\nx"), b""),
}


@pytest.mark.parametrize("case", BROKEN_OFF)
async def test_the_head_of_an_answer_counts_though_its_body_broke_off(wire: Wire, case: str) -> None:
    """Status and headers are told, and what there was of the body."""
    serve, body = BROKEN_OFF[case]
    async with serving(serve) as server:
        with pytest.raises(BrokenOff) as caught:
            await ask(wire, server.target(), max_body=64)
    error = caught.value
    assert (error.status, error.headers["retry-after"]) == (407, "7")
    assert error.body == body


async def test_the_head_of_an_answer_counts_though_its_body_is_late(wire: Wire) -> None:
    """What came before the deadline is told."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send(PROXY + b"content-length: 10\r\n\r\nhalf")
        await peer.hung_up()

    async with serving(serve) as server:
        with pytest.raises(BrokenOff) as caught:
            await ask(wire, server.target(), deadline=0.3)
        await server.hung_up.wait()
    assert (caught.value.status, caught.value.body) == (407, b"half")


async def test_without_a_whole_head_there_is_no_status(wire: Wire) -> None:
    """Half a head, and an interim answer, say nothing of the request."""
    for answer in (b"HTTP/1.1 407 No\r\nretry", b"HTTP/1.1 100 Continue\r\n\r\n", b""):
        async with serving(closing(answer)) as server:
            with pytest.raises(OutcomeUnknown) as caught:
                await ask(wire, server.target())
            assert type(caught.value) is OutcomeUnknown


async def test_what_is_too_late_is_not_written(wire: Wire) -> None:
    """The check comes after connecting; without a single byte the connection serves the next request."""

    def too_late() -> None:
        raise TooLate("too late")

    async with serving(answering(OK)) as server:
        target = server.target()
        for _ in range(2):  # over a new connection, and over a kept one
            with pytest.raises(TooLate):
                await wire.exchange("POST", target, [], b"x", deadline=9.0, max_body=64, check=too_late)
            assert (await ask(wire, target)).body == b"ok"
        assert [request[:3] for request in server.requests] == [b"GET", b"GET"]


@pytest.mark.parametrize("case", IN_DOUBT)
async def test_after_a_broken_answer_the_next_request_takes_another_connection(wire: Wire, case: str) -> None:
    """Nothing of a broken answer is ever taken for the answer to the next request."""

    async def serve(peer: Peer) -> None:
        await (IN_DOUBT[case] if peer.number == 1 else answering(OK))(peer)

    async with serving(serve) as server:
        with pytest.raises(OutcomeUnknown):
            await ask(wire, server.target(), max_body=64)
        assert (await ask(wire, server.target())).body == b"ok"
        assert server.connections == 2


async def test_the_request_arrives_as_it_was_given(wire: Wire) -> None:
    """Method, path with query, host, headers, length and body; no compression is asked for."""
    async with serving(answering(OK)) as server:
        await ask(wire, server.target("/a%20b?c=%7B&d"), body=b"\x00binary\r\n\r\n")
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        request, *headers = head.split(b"\r\n")
        assert request == b"POST /a%20b?c=%7B&d HTTP/1.1"
        assert body == b"\x00binary\r\n\r\n"
        assert {header.lower() for header in headers} == {
            b"host: 127.0.0.1:%d" % server.port,
            b"accept-encoding: identity",
            b"x-a: 1",
            b"content-length: 11",
        }


async def test_an_empty_post_says_so(wire: Wire) -> None:
    """A POST without a body announces a length of 0, which servers insist on."""
    async with serving(answering(OK)) as server:
        await wire.exchange("POST", server.target(), [], b"", deadline=5.0, max_body=10)
        assert b"\r\ncontent-length: 0\r\n" in server.requests[0].lower()


async def test_header_names_are_lower_case_and_the_last_of_a_repeated_one_counts(wire: Wire) -> None:
    """Headers of the answer look the same over every wire."""
    answer = HEAD + b"X-One: a\r\nx-ONE: b\r\nRetry-After:  7 \r\ncontent-length: 0\r\n\r\n"
    async with serving(answering(answer)) as server:
        headers = (await ask(wire, server.target())).headers
        assert (headers["x-one"], headers["retry-after"]) == ("b", "7")


async def test_a_kept_connection_is_used_again(wire: Wire) -> None:
    """One request after the other goes over one connection."""
    async with serving(answering(OK)) as server:
        for _ in range(5):
            assert (await ask(wire, server.target())).status == 200
        assert (server.connections, len(server.requests)) == (1, 5)


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ],
    ids=["close", "HTTP/1.0"],
)
async def test_a_connection_that_ends_is_not_used_again(wire: Wire, answer: bytes) -> None:
    """Where the server says that it closes, the next request opens a connection of its own."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.hung_up()

    async with serving(serve) as server:
        for _ in range(2):
            assert (await ask(wire, server.target())).body == b"ok"
        assert server.connections == 2


async def test_an_idle_connection_that_the_server_closed_is_not_used_again(wire: Wire) -> None:
    """A server may close a connection whenever it is idle: no request is lost by it."""
    async with serving(closing(OK)) as server:
        for _ in range(3):
            assert (await ask(wire, server.target())).body == b"ok"
            await anyio.wait_all_tasks_blocked()
        assert server.connections == 3


async def test_hanging_up_on_a_kept_connection_is_in_doubt(wire: Wire) -> None:
    """The server took the second request and closed without a byte: it may have acted on it."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    async with serving(serve) as server:
        await ask(wire, server.target())
        with pytest.raises(OutcomeUnknown):
            await ask(wire, server.target(), body=b"once")
        assert (server.connections, len(server.requests)) == (1, 2)


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens on, and that nobody else gets meanwhile."""
    with socket.socket() as unbound:
        unbound.bind(("127.0.0.1", 0))
        yield unbound.getsockname()[1]


async def test_a_refused_connection_means_that_nothing_was_sent(wire: Wire) -> None:
    """Where nobody listens, the request surely didn't leave."""
    with closed_port() as port, pytest.raises(NotSent):
        await ask(wire, target_of(f"http://127.0.0.1:{port}/"))


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
async def test_a_name_that_is_none_means_that_nothing_was_sent(wire: Wire, host: str) -> None:
    """A host name that can't even be looked up is no reason to fall over."""
    with pytest.raises(NotSent):
        await ask(wire, Target("http", host, 80, host, b"/"))


async def test_an_unknown_host_means_that_nothing_was_sent(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the name isn't known, the request surely didn't leave."""

    def unknown(*_args: object, **_kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(NotSent):
        await ask(wire, target_of("http://provider.invalid/"))


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose listener takes no connection any more: who connects there waits."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        try:
            yield listener.getsockname()[1]
        finally:
            for one in waiting:
                one.close()


async def test_a_connection_that_takes_too_long_means_that_nothing_was_sent(wire: Wire) -> None:
    """The deadline passed before there was a connection: that isn't in doubt."""
    with full_backlog() as port, pytest.raises(NotSent):
        await ask(wire, target_of(f"http://127.0.0.1:{port}/"), deadline=0.2)


async def test_the_deadline_is_for_the_whole_answer(wire: Wire) -> None:
    """A server that drips its answer byte by byte never runs into a read time-out, but into this one."""

    async def drip(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + b"content-length: 1000000\r\n\r\n")
        with anyio.move_on_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.hung_up)
                while not server.hung_up.is_set():
                    await peer.send(b"x")
                    with anyio.move_on_after(0.02):
                        await server.hung_up.wait()

    async with serving(drip) as server:
        with pytest.raises(OutcomeUnknown, match=r"within 0\.2 s"):
            await ask(wire, server.target(), deadline=0.2)
        await server.hung_up.wait()


async def test_a_server_that_never_answers_is_in_doubt(wire: Wire) -> None:
    """The request is out, the deadline passes, and the connection is closed."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.hung_up()

    async with serving(serve) as server:
        with pytest.raises(OutcomeUnknown):
            await ask(wire, server.target(), deadline=0.1)
        await server.hung_up.wait()


async def test_a_cancelled_request_closes_its_connection(wire: Wire) -> None:
    """The late answer of a cancelled request never meets the next one, which goes over a new connection."""
    asked = anyio.Event()

    async def serve(peer: Peer) -> None:
        if peer.number > 1:
            await answering(OK)(peer)
        await peer.request()
        asked.set()
        await peer.hung_up()

    async with serving(serve) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, wire, server.target())
            await asked.wait()
            tasks.cancel_scope.cancel()
        await server.hung_up.wait()
        assert (await ask(wire, server.target())).body == b"ok"
        assert server.connections == 2


@pytest.mark.slow
async def test_two_hundred_requests_at_once(wire: Wire) -> None:
    """Each gets its own answer, whatever the order in which they come in."""

    async def serve(peer: Peer) -> None:
        while True:
            path = (await peer.request()).split(b" ")[1]
            await peer.send(HEAD + b"content-length: %d\r\n\r\n%b" % (len(path), path))

    async with serving(serve) as server:
        answers: dict[int, bytes] = {}

        async def one(number: int) -> None:
            answers[number] = (await ask(wire, server.target(f"/{number}"))).body

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(one, number)
        assert answers == {number: b"/%d" % number for number in range(200)}


async def test_a_large_body_goes_out_and_comes_back(wire: Wire) -> None:
    """Megabytes in both directions, more than any buffer on the way holds."""
    body = bytes(range(256)) * 16384

    async def serve(peer: Peer) -> None:
        echo = (await peer.request()).partition(b"\r\n\r\n")[2]
        await peer.send(HEAD + b"content-length: %d\r\n\r\n%b" % (len(echo), echo))

    async with serving(serve) as server:
        assert (await ask(wire, server.target(), body=body, max_body=len(body))).body == body


@own_only  # httpx calls such an answer in doubt as a whole
@pytest.mark.parametrize(
    "extra", [b"HTTP/1.1 500 Oops\r\nx-a: evil\r\ncontent-length: 0\r\n\r\n", b"ok", b"HTTP/1."]
)
async def test_what_follows_an_answer_is_nobodys_answer(wire: Wire, extra: bytes) -> None:
    """Bytes after the answer change nothing of it, and are never read as the answer to the next request."""
    async with serving(answering(OK + extra)) as server:
        for _ in range(2):
            answer = await ask(wire, server.target())
            assert (answer.status, answer.headers, answer.body) == (200, {"content-length": "2"}, b"ok")
        assert server.connections == 2


# what only our own wire has to keep itself


@own_only
async def test_an_idle_connection_is_closed_after_a_while(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to ask for it: connections of a burst don't stay open until the server has had enough."""
    monkeypatch.setattr(asyncio_wire, "IDLE_SECONDS", 0.1)
    together = anyio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        if peer.number == 3:
            together.set()
        await together.wait()
        await peer.send(OK)
        await peer.hung_up()

    async with serving(serve) as server:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, wire, server.target())
        while server.hang_ups < 3:
            await server.hung_up.wait()
            server.hung_up = anyio.Event()
        assert (await ask(wire, server.target(), deadline=5.0)).body == b"ok"


@own_only
async def test_data_on_an_idle_connection_closes_it(wire: Wire) -> None:
    """What comes in while nothing was asked for can't be an answer."""
    go = anyio.Event()

    async def serve(peer: Peer) -> None:
        if peer.number > 1:
            await answering(OK)(peer)
        await peer.request()
        await peer.send(OK)
        await go.wait()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
        await peer.hung_up()

    async with serving(serve) as server:
        await ask(wire, server.target())
        go.set()
        await server.hung_up.wait()
        assert (await ask(wire, server.target())).body == b"ok"
        assert server.connections == 2


@own_only
async def test_endless_heads_and_trailers_are_bounded(wire: Wire) -> None:
    """A server can't fill the memory with what isn't body: the connection is closed soon."""
    line = b"x-a: " + b"x" * 1000 + b"\r\n"
    starts = [HEAD, b"HTTP/1.1 100 Continue\r\n\r\n", chunked(b"ab")[: -len(b"\r\n")]]
    repeated = [line, b"HTTP/1.1 100 Continue\r\n\r\n" * 40, line]

    for start, again in zip(starts, repeated, strict=True):

        async def serve(peer: Peer, start: bytes = start, again: bytes = again) -> None:
            await peer.request()
            await peer.send(start)
            for _ in range(64 * MAX_HEAD // len(again)):
                await peer.send(again)
            await peer.send(b"x")

        async with serving(serve) as server:
            with pytest.raises(OutcomeUnknown, match="larger than"):
                await ask(wire, server.target())


@own_only
async def test_an_answer_before_the_whole_request_is_out(wire: Wire) -> None:
    """A refusal in the middle of a large request is heard; the connection is not used again."""

    async def serve(peer: Peer) -> None:
        if peer.number > 1:
            await answering(OK)(peer)
        await peer.send(b"")
        await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await anyio.sleep_forever()

    async with serving(serve) as server:
        assert await heard(wire, server) == 413
        assert (await ask(wire, server.target())).body == b"ok"
        assert server.connections == 2


async def heard(wire: Wire, server: Server) -> int:
    return (await ask(wire, server.target(), body=b"x" * (8 << 20))).status


@own_only
async def test_closing_ends_requests_under_way(wire: Wire) -> None:
    """Closing waits for nobody: a request under way is in doubt, half an answer is none."""
    asked = anyio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + b"\r\nhalf of a body that ends with the connection")
        asked.set()
        await peer.hung_up()

    errors: list[type[Exception]] = []

    async def one(server: Server) -> None:
        with pytest.raises(OutcomeUnknown) as caught:
            await ask(wire, server.target())
        errors.append(caught.type)

    async with serving(serve) as server, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(one, server)
        await asked.wait()
        await anyio.wait_all_tasks_blocked()
        await wire.aclose()
    assert errors == [BrokenOff] * 3


@own_only
async def test_closing_ends_connections_that_are_just_made(wire: Wire) -> None:
    """A connection that comes about while the wire is closed is closed too, and nothing is sent over it."""
    async with serving(answering(OK)) as server:
        async with anyio.create_task_group() as tasks:

            async def one() -> None:
                with pytest.raises(NotSent):
                    await ask(wire, server.target())

            tasks.start_soon(one)
            await anyio.lowlevel.checkpoint()
            await wire.aclose()
        assert server.requests == []
