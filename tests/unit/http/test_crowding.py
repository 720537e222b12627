"""Connections that let a server wait, on real sockets: whose are closed, and that nobody else is held up."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import pytest
from anyio.abc import SocketStream
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from deliveryd.http import server
from deliveryd.http.addresses import bind
from deliveryd.http.peers import MOST_UNFINISHED, Peers
from deliveryd.http.server import MOST_OF_A_PEER

LOCAL = ("127.0.0.1", "::1")
PROMPTLY = 1.0
HEAD = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n"
FLOOD = MOST_UNFINISHED + 5


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The server is bound to asyncio, with uvloop in production."""
    return "asyncio", {"use_uvloop": request.param}


class Server:
    """A server that answers 200 to a request that has come whole, and the clients that connect to it."""

    def __init__(self, port: int, clients: AsyncExitStack) -> None:
        self._port = port
        self._clients = clients

    async def connect(self, source: str = "127.0.0.1") -> SocketStream:
        """A connection from an address of this machine."""
        stream = await anyio.connect_tcp("127.0.0.1", self._port, local_host=source)
        return await self._clients.enter_async_context(stream)

    async def begin(self, source: str = "127.0.0.1", forwarded: str = "") -> SocketStream:
        """A request that stops within its body."""
        stream = await self.connect(source)
        told = f"X-Forwarded-For: {forwarded}\r\n".encode() if forwarded else b""
        await stream.send(HEAD + told + b"\r\nbo")
        return stream

    def burst(self, count: int) -> list[socket.socket]:
        """As many connections, each with a whole request, without giving way to anything else."""
        made = [socket.create_connection(("127.0.0.1", self._port)) for _ in range(count)]
        for each in made:
            self._clients.enter_context(each)
            each.sendall(HEAD + b"\r\nbody")
            each.setblocking(False)
        return made


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, trusted: tuple[str, ...] = LOCAL) -> AsyncIterator[Server]:
    bound, stop = bind("receipts.listen", "127.0.0.1:0"), anyio.Event()
    port = bound.getsockname()[1]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, app, bound, stop, Peers(trusted))
        async with AsyncExitStack() as clients:
            yield Server(port, clients)
        stop.set()


@pytest.mark.anyio
async def test_what_stands_behind_a_body_is_no_header() -> None:
    """A proxy may pass it on as it came: it would be the latest word on whose request it is."""

    async def answer_headers(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await Response(str(scope["headers"]))(scope, receive, send)

    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 203.0.113.7\r\n"
    body = b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n"
    trailer = b"X-Forwarded-For: 198.51.100.1\r\nAuthorization: Basic Zm9v\r\n\r\n"
    async with serving(answer_headers) as running:
        client = await running.connect()
        for _ in range(2):  # the head of the next request counts again
            await client.send(head + body + trailer)
            answer = await client.receive()
            assert b"203.0.113.7" in answer
            assert b"198.51.100.1" not in answer
            assert b"authorization" not in answer


async def answer_whole(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers a request when all of it is there."""
    with contextlib.suppress(ClientDisconnect):
        await Request(scope, receive).body()
        await Response(b"thanks")(scope, receive, send)


@pytest.mark.anyio
async def test_requests_under_way_end_with_their_server_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where a worker is fenced while receipts arrive: their providers report them again."""
    begun = anyio.Event()

    async def hang(_scope: Scope, _receive: Receive, _send: Send) -> None:
        begun.set()
        await anyio.sleep_forever()

    bound = bind("receipts.listen", "127.0.0.1:0")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, hang, bound, anyio.Event())
        async with await anyio.connect_tcp("127.0.0.1", bound.getsockname()[1]) as stream:
            await stream.send(HEAD + b"\r\nbody")
            await begun.wait()
            tasks.cancel_scope.cancel()
    await anyio.wait_all_tasks_blocked()
    assert not caplog.records


async def status(stream: SocketStream) -> bytes:
    """The status of an answer; `closed` where there is none."""
    try:
        with anyio.fail_after(PROMPTLY):
            return (await stream.receive())[9:12]
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return b"closed"


async def finished(stream: SocketStream) -> bytes:
    """The status of the answer to the rest of a request."""
    with contextlib.suppress(anyio.BrokenResourceError):
        await stream.send(b"dy")
    return await status(stream)


@pytest.mark.slow
@pytest.mark.parametrize("beginning", [b"", b"POST / HT", HEAD + b"\r\nbo"], ids=["silent", "head", "body"])
@pytest.mark.anyio
async def test_a_flood_of_unfinished_requests_shuts_nobody_out(beginning: bytes) -> None:
    """However many addresses they come from, a request that comes whole is answered at once."""
    async with serving(answer_whole) as there:
        for number in range(FLOOD):
            stream = await there.connect(f"127.0.1.{number + 1}")
            await stream.send(beginning)
        genuine = await there.begin("127.0.2.1")
        assert await finished(genuine) == b"200"


@pytest.mark.anyio
async def test_the_oldest_unfinished_request_gives_way_first() -> None:
    """One that began later has its time, until as many have come after it."""
    async with serving(answer_whole) as there:
        first = await there.begin("127.0.2.1")
        second = await there.begin("127.0.2.2")
        for number in range(MOST_UNFINISHED - 1):
            await there.begin(f"127.0.1.{number + 1}")
        assert await status(first) == b"closed"
        assert await finished(second) == b"200"


@pytest.mark.slow
@pytest.mark.anyio
async def test_one_peer_takes_no_place_of_others() -> None:
    """Whoever opens more than its share closes its own oldest ones."""
    async with serving(answer_whole) as there:
        others = await there.begin("127.0.2.1")
        own = await there.begin("127.0.1.1")
        for _ in range(FLOOD):
            await there.begin("127.0.1.1")
        assert await status(own) == b"closed"
        assert await finished(others) == b"200"


@pytest.mark.slow
@pytest.mark.anyio
async def test_behind_a_proxy_the_peer_is_the_rightmost_address_that_no_trusted_proxy_has() -> None:
    """What stands before it may be invented, and a proxy by itself has no share."""
    async with serving(answer_whole, ("127.0.0.0/24", "10.0.0.0/8")) as there:
        others = await there.begin("127.0.0.1", "198.51.100.8, 10.0.0.7")
        own = await there.begin("127.0.0.1", "198.51.100.9:4711")
        for number in range(MOST_OF_A_PEER):
            await there.begin("127.0.0.1", f"203.0.113.{number}, 198.51.100.9, 10.0.0.7")
        assert await status(own) == b"closed"
        for _ in range(MOST_OF_A_PEER // 2):
            await there.begin("127.0.0.1")
        assert await finished(others) == b"200"


@pytest.mark.anyio
async def test_a_stranger_names_no_peer() -> None:
    """Only a trusted proxy is believed: others can't have a share for each name that they invent."""
    async with serving(answer_whole) as there:
        own = await there.begin("127.0.1.1", "203.0.113.1")
        for number in range(MOST_OF_A_PEER):
            await there.begin("127.0.1.1", f"203.0.113.{number}")
        assert await status(own) == b"closed"


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_whole_request_that_waits_for_its_answer_is_never_closed() -> None:
    """Not by its peer's flood, nor by anybody's: it may be just about to be durable."""
    asked, go = anyio.Event(), anyio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        asked.set()
        await go.wait()
        await Response(b"thanks")(scope, receive, send)

    async with serving(slow) as there:
        genuine = await there.begin("127.0.1.1")
        await genuine.send(b"dy")
        await asked.wait()
        for number in range(FLOOD):
            await there.begin("127.0.1.1")
            await there.begin(f"127.0.1.{number + 1}")
        go.set()
        assert await status(genuine) == b"200"


@pytest.mark.parametrize(("trusted", "count"), [(LOCAL, MOST_UNFINISHED + 100), ((), MOST_OF_A_PEER + 50)])
@pytest.mark.anyio
async def test_a_burst_of_whole_requests_is_answered(trusted: tuple[str, ...], count: int) -> None:
    """Those that came while the worker stood still have sent their requests when it sees them."""
    async with serving(answer_whole, trusted) as there:
        assert await finished(await there.begin()) == b"200"
        burst = there.burst(count)  # the server's loop stands still meanwhile: it is this one
        answers = []
        for line in burst:
            await anyio.wait_readable(line)
            answers.append(line.recv(12)[9:])
        assert answers == [b"200"] * count


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_kept_connection_counts_anew_with_each_request() -> None:
    """One that was idle for long isn't the oldest when its next request begins."""
    async with serving(answer_whole) as there:
        kept = await there.begin("127.0.2.1")
        assert await finished(kept) == b"200"
        for number in range(MOST_UNFINISHED - 1):
            await there.begin(f"127.0.1.{number + 1}")
        await kept.send(HEAD + b"\r\nbo")
        await there.begin("127.0.3.1")
        await there.begin("127.0.3.2")
        assert await finished(kept) == b"200"


@pytest.mark.parametrize(
    ("values", "peer"),
    [
        ([b"203.0.113.7"], "203.0.113.7"),
        ([b"203.0.113.7", b"198.51.100.9"], "198.51.100.9"),
        ([b"203.0.113.7, 10.0.0.1"], "203.0.113.7"),
        ([b"203.0.113.7,::1 , 10.0.0.1"], "203.0.113.7"),
        ([b"2001:db8::7"], "2001:db8::/64"),
        ([b"[2001:db8::7]:443"], "2001:db8::/64"),
        ([b"::ffff:203.0.113.7"], "203.0.113.7"),
        ([b"203.0.113.7, unknown"], None),
        ([b"203.0.113.7, unknown, 10.0.0.1"], None),
        ([b"10.0.0.2, 10.0.0.1"], None),
        ([b"\xff"], None),
        ([b""], None),
    ],
)
def test_the_peer_is_read_from_what_proxies_wrote(values: list[bytes], peer: str | None) -> None:
    """From the right, as far as proxies are trusted; an IPv6 peer has a whole network to itself."""
    assert Peers(("10.0.0.0/8", "::1")).forwarded(values) == peer


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("before", [b"", HEAD + b"\r\nbody"], ids=["first", "pipelined"])
@pytest.mark.parametrize("name", [b"a", b"a" * 40_000], ids=["value", "name"])
async def test_a_long_head_is_refused_also_if_it_comes_at_once(before: bytes, name: bytes) -> None:
    """Whatever is in it is worked through before the request is known to be genuine."""
    head = HEAD + b"%b: %b\r\n" % (name, b"a" * (40_001 - len(name)))
    async with serving(answer_whole) as running:
        connection = await running.connect()
        await connection.send(before + head + b"\r\nbody")
        answers = b""
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                answers += await connection.receive()
    assert b"The head of the request is too long." in answers
    assert answers.count(b"200 OK") <= bool(before)


@pytest.mark.anyio
async def test_beyond_so_many_connections_answers_end_theirs() -> None:
    """A provider that opens many is told to close them, before an idle one is closed with a request on it."""
    async with serving(answer_whole) as there:
        streams = [await there.connect(f"127.0.1.{number + 1}") for number in range(MOST_UNFINISHED // 2 + 1)]
        answers = []
        for stream in streams[:2]:
            await stream.send(HEAD + b"\r\nbody")
            with anyio.fail_after(PROMPTLY):
                answers.append(await stream.receive())
        assert [b"connection: close" in answer for answer in answers] == [True, False]
