"""The wires' connections: kept, reused, closed, never made, and given up."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream

from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http import stream_wire
from deliveryd.http.target import target_of
from deliveryd.http.wire import Target, Wire
from deliveryd.network import connection
from support.wires import (
    FAST,
    HEAD,
    OK,
    STREAMS,
    Kind,
    Peer,
    answering,
    ask,
    closing,
    serving,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[*FAST, *STREAMS])
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


@pytest.mark.parametrize("kind", STREAMS, indirect=True)
async def test_nothing_is_sent_after_the_deadline_though_the_connection_was_made_late(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stood still while it connected: the request surely wasn't sent, and may be again."""
    opened = connection.open_stream

    async def held_up(*where: Any) -> ByteStream:
        stream = await opened(*where)
        time.sleep(0.3)  # noqa: ASYNC251  # nothing turns meanwhile
        return stream

    monkeypatch.setattr(stream_wire, "open_stream", held_up)
    async with serving(answering(OK)) as server:
        with pytest.raises(NotSent):
            await ask(wire, server.target(), body=b"x", deadline=0.2)
        monkeypatch.undo()
        assert (await ask(wire, server.target("/next"))).status == 200
        assert [request.split(b" ")[1] for request in server.requests] == [b"/next"]
