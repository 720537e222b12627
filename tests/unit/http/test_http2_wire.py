"""HTTP/2: what surely wasn't processed is not sent, all else without a whole answer is in doubt."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme
from h2.errors import ErrorCodes

from deliveryd.errors import BrokenOff, NotSent, OutcomeUnknown, TooLarge, TooLate
from deliveryd.http import http2_connection
from deliveryd.http.http2_wire import Http2Wire
from deliveryd.http.target import target_of
from deliveryd.http.wire import WireResponse
from support.http2_server import Http2Request, Http2Server, open_http2_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server() -> AsyncIterator[Http2Server]:
    async with open_http2_server() as server:
        yield server


@pytest.fixture
async def wire() -> AsyncIterator[Http2Wire]:
    wire = Http2Wire(ssl.create_default_context)
    yield wire
    await wire.aclose()


def post(
    wire: Http2Wire, server: Http2Server, body: bytes = b"x", **more: Any
) -> Coroutine[Any, Any, WireResponse]:
    given = {"deadline": 5.0, "max_body": 1000} | more
    path = given.pop("path", "/push")
    return wire.exchange("POST", target_of(f"{server.url}{path}"), [(b"X-Key", b"k-1")], body, **given)


async def outcome(request: Coroutine[Any, Any, WireResponse]) -> WireResponse | Exception:
    try:
        return await request
    except (NotSent, OutcomeUnknown) as error:
        return error


async def test_a_request_and_its_answer(wire: Http2Wire, server: Http2Server) -> None:
    server.act = lambda request: request.answer(201, b'{"a":1}', apns_id="id-1")
    answer = await post(wire, server, b"hello")
    assert answer == WireResponse(201, {"apns-id": "id-1"}, b'{"a":1}')
    [request] = server.seen
    assert (request.headers[":method"], request.headers[":path"], request.body) == ("POST", "/push", b"hello")
    assert request.headers["x-key"] == "k-1"


async def test_a_thousand_requests_share_one_connection(wire: Http2Wire, server: Http2Server) -> None:
    server.act = lambda request: request.answer(200, request.body)
    answers = await asyncio.gather(*(post(wire, server, b"%d" % n) for n in range(1000)))
    assert [answer.body for answer in answers] == [b"%d" % n for n in range(1000)]
    assert len(server.connections) == 1


@pytest.mark.parametrize("streams", [1, 7])
async def test_no_more_streams_than_the_server_allows(
    wire: Http2Wire, server: Http2Server, streams: int
) -> None:
    server.streams = streams
    open_now: list[Http2Request] = []
    most = 0

    def act(request: Http2Request) -> None:
        nonlocal most
        open_now.append(request)
        most = max(most, len(open_now))
        asyncio.get_running_loop().call_soon(answer, request)

    def answer(request: Http2Request) -> None:
        open_now.remove(request)
        request.answer()

    server.act = act
    await asyncio.gather(*(post(wire, server) for _ in range(50)))
    assert 0 < most <= streams
    assert len(server.seen) == 50


async def test_a_setting_that_grows_lets_more_begin(wire: Http2Wire, server: Http2Server) -> None:
    """As APNs does after the first good request."""
    server.streams = 1

    def act(request: Http2Request) -> None:
        if len(server.seen) == 1:
            request.answer()
            request.connection.allow(100)
        elif len(server.seen) == 10:
            for each in server.seen[1:]:
                each.answer()

    server.act = act
    answers = await asyncio.gather(*(post(wire, server) for _ in range(10)))
    assert {answer.status for answer in answers} == {200}


async def test_going_away_in_the_middle_of_a_hundred_streams(wire: Http2Wire, server: Http2Server) -> None:
    """Those above the last stream weren't sent; those below are answered all the same; new ones go on."""

    def act(request: Http2Request) -> None:
        if len(server.seen) == 100:
            request.connection.go_away(last=server.seen[49].number)
            for each in server.seen[:50]:
                each.answer()
        elif len(server.seen) > 100:
            request.answer()

    server.act = act
    outcomes = await asyncio.gather(*(outcome(post(wire, server)) for _ in range(100)))
    assert [type(each) for each in outcomes] == [WireResponse] * 50 + [NotSent] * 50
    assert "goes away (NO_ERROR) and didn't process it" in str(outcomes[99])
    assert (await post(wire, server)).status == 200
    assert len(server.connections) == 2


async def test_what_has_no_answer_when_the_connection_breaks_is_in_doubt(
    wire: Http2Wire, server: Http2Server
) -> None:
    def act(request: Http2Request) -> None:
        if len(server.seen) == 10:
            for each in server.seen[:4]:
                each.answer()
            request.connection.go_away(last=server.seen[7].number, code=ErrorCodes.INTERNAL_ERROR)
            asyncio.get_running_loop().call_later(0.05, request.connection.abort)

    server.act = act
    outcomes = await asyncio.gather(*(outcome(post(wire, server)) for _ in range(10)))
    assert [type(each) for each in outcomes] == [WireResponse] * 4 + [OutcomeUnknown] * 4 + [NotSent] * 2
    assert "goes away (INTERNAL_ERROR)" in str(outcomes[5])


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCodes.REFUSED_STREAM, NotSent),
        (ErrorCodes.INTERNAL_ERROR, OutcomeUnknown),
        (ErrorCodes.CANCEL, OutcomeUnknown),
    ],
)
async def test_a_reset_stream(
    wire: Http2Wire, server: Http2Server, code: ErrorCodes, error: type[Exception]
) -> None:
    """Only a refused one surely wasn't processed; others on the connection go on."""
    server.act = lambda request: request.reset(code) if len(server.seen) == 1 else request.answer()
    first, second = await asyncio.gather(outcome(post(wire, server)), post(wire, server))
    assert type(first) is error
    assert second.status == 200
    assert len(server.connections) == 1


async def test_no_answer_in_time_is_in_doubt(wire: Http2Wire, server: Http2Server) -> None:
    server.act = lambda _request: None
    given = await outcome(post(wire, server, deadline=0.2))
    assert type(given) is OutcomeUnknown
    server.act = lambda request: request.answer()
    assert (await post(wire, server)).status == 200


async def test_an_answer_without_its_end_keeps_its_head(wire: Http2Wire, server: Http2Server) -> None:
    def act(request: Http2Request) -> None:
        request.connection.h2.send_headers(request.number, [(":status", "410")])
        request.connection.h2.send_data(request.number, b"part")

    server.act = act
    given = await outcome(post(wire, server, deadline=0.3))
    assert isinstance(given, BrokenOff)
    assert (given.status, given.body) == (410, b"part")


async def test_a_connection_that_died_in_silence_is_found_before_a_request(
    wire: Http2Wire, server: Http2Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping shows it: the request goes over another connection, and isn't in doubt."""
    await post(wire, server)
    server.connections[0].is_silent = True
    monkeypatch.setattr(http2_connection, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(http2_connection, "PING_SECONDS", 0.1)
    assert (await post(wire, server)).status == 200
    assert (len(server.connections), len(server.seen)) == (2, 2)


async def test_a_live_connection_answers_the_ping(
    wire: Http2Wire, server: Http2Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2_connection, "QUIET_SECONDS", 0.0)
    for _ in range(3):
        await post(wire, server)
    assert len(server.connections) == 1


async def test_a_large_request_waits_for_the_servers_windows(wire: Http2Wire, server: Http2Server) -> None:
    body = b"x" * 300_000
    assert (await post(wire, server, body)).status == 200
    assert server.seen[0].body == body


async def test_a_request_that_wasnt_written_to_its_end_was_not_sent(
    wire: Http2Wire, server: Http2Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's window stays closed."""
    monkeypatch.setattr("h2.connection.H2Connection.acknowledge_received_data", lambda *_args: None)
    given = await outcome(post(wire, server, b"x" * 300_000, deadline=0.3))
    assert type(given) is NotSent
    assert server.seen == []


async def test_a_large_answer_is_cut_off(wire: Http2Wire, server: Http2Server) -> None:
    server.act = lambda request: request.answer(200, b"y" * 5000)
    given = await outcome(post(wire, server, max_body=1000))
    assert isinstance(given, TooLarge)
    assert (given.status, len(given.body)) == (200, 1000)


async def test_what_is_too_late_is_not_sent(wire: Http2Wire, server: Http2Server) -> None:
    server.streams = 1

    def check() -> None:
        raise TooLate("expired")

    with pytest.raises(TooLate):
        await post(wire, server, check=check)
    assert (await post(wire, server)).status == 200
    assert len(server.seen) == 1


async def test_a_cancelled_request_frees_its_stream(wire: Http2Wire, server: Http2Server) -> None:
    server.streams = 1
    arrived = asyncio.Event()
    server.act = lambda request: request.answer() if arrived.is_set() else arrived.set()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(post(wire, server))
        await arrived.wait()
        second = tasks.create_task(post(wire, server))
        first.cancel()
    assert (await second).status == 200


async def test_no_room_in_time_is_not_sent(wire: Http2Wire, server: Http2Server) -> None:
    server.streams = 1
    server.act = lambda _request: None
    first, second = await asyncio.gather(
        outcome(post(wire, server, deadline=0.4)), outcome(post(wire, server, deadline=0.2))
    )
    assert (type(first), type(second)) == (OutcomeUnknown, NotSent)


async def test_who_doesnt_speak_it(wire: Http2Wire) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener:
        request = wire.exchange(
            "POST", target_of(f"http://localhost:{port}/"), [], b"", deadline=5, max_body=9
        )
        assert type(await outcome(request)) is NotSent


async def test_over_tls_with_the_protocol_agreed_on(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(ours)
    wire = Http2Wire(lambda: ssl.create_default_context(cafile=tmp_path / "ca.pem"))
    for protocols, answers in ((["h2"], True), (["http/1.1"], False)):
        ours.set_alpn_protocols(protocols)
        async with open_http2_server(ours) as server:
            given = await outcome(post(wire, server))
            assert isinstance(given, WireResponse if answers else NotSent)
            assert answers or "HTTP/2" in str(given)
    await wire.aclose()


async def test_an_answer_that_began_before_the_requests_end_counts(
    wire: Http2Wire, server: Http2Server
) -> None:
    """The window is closed, and the head has come: it isn't as if nothing had been sent."""
    server.window = 10

    def begin(request: Http2Request) -> None:
        request.connection.h2.send_headers(request.number, [(":status", "410")])

    server.begin = begin
    given = await outcome(post(wire, server, b"x" * 100, deadline=0.3))
    assert isinstance(given, BrokenOff)
    assert given.status == 410


async def test_streams_that_are_answered_early_are_given_back(wire: Http2Wire, server: Http2Server) -> None:
    server.window, server.streams = 10, 3
    server.begin = lambda request: request.answer(413)
    answers = [await outcome(post(wire, server, b"x" * 100)) for _ in range(10)]
    assert [getattr(answer, "status", answer) for answer in answers] == [413] * 10
    assert len(server.connections) == 1


async def test_a_reset_among_waiting_streams_concerns_that_one_alone(
    wire: Http2Wire, server: Http2Server
) -> None:
    """The library knows of the reset before the window's event is handled."""
    server.window = 10
    held: list[Http2Request] = []

    def begin(request: Http2Request) -> None:
        if request.headers["content-length"] == "100":
            h2 = request.connection.h2
            h2.increment_flow_control_window(1000)
            h2.reset_stream(request.number, ErrorCodes.REFUSED_STREAM)
            asyncio.get_running_loop().call_soon(answer_all)

    def answer_all() -> None:
        for each in held:
            each.answer()

    server.begin = begin
    server.act = held.append
    outcomes = await asyncio.gather(
        *(outcome(post(wire, server)) for _ in range(3)), outcome(post(wire, server, b"x" * 100))
    )
    assert [type(each) for each in outcomes] == [WireResponse] * 3 + [NotSent]


async def test_a_window_that_grows_by_a_setting_is_used(wire: Http2Wire, server: Http2Server) -> None:
    server.window = 10
    server.begin = lambda request: request.connection.grow(1000)
    assert (await post(wire, server, b"x" * 100)).status == 200


async def test_what_waited_for_a_window_is_not_sent_too_late(wire: Http2Wire, server: Http2Server) -> None:
    server.window = 10
    server.begin = lambda request: request.connection.grow(1000)
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise TooLate("expired")

    with pytest.raises(TooLate):
        await post(wire, server, b"x" * 100, check=check)
    assert server.seen == []


async def test_a_retired_connection_is_closed_when_its_last_request_ends(
    wire: Http2Wire, server: Http2Server
) -> None:
    server.act = lambda request: request.connection.go_away(last=request.number)
    for _ in range(3):
        assert type(await outcome(post(wire, server, deadline=0.2))) is OutcomeUnknown
    await asyncio.gather(*(connection.lost.wait() for connection in server.connections))
    assert len(server.connections) == 3


async def test_other_files_for_tls_make_another_connection(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(ours)
    ours.set_alpn_protocols(["h2"])
    contexts = [ssl.create_default_context(cafile=tmp_path / "ca.pem") for _ in range(2)]
    wire = Http2Wire(lambda: contexts[-1])
    async with open_http2_server(ours) as server:
        for _ in range(2):
            await post(wire, server)
        contexts.pop()
        await post(wire, server)
        assert len(server.connections) == 2
    await wire.aclose()


async def test_who_came_first_begins_first(wire: Http2Wire, server: Http2Server) -> None:
    server.streams = 1
    done = asyncio.Event()

    async def busy() -> None:
        while not done.is_set():
            await post(wire, server)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(busy())
        await post(wire, server)
        await post(wire, server)
        before = len(server.seen)
        await post(wire, server)
        assert len(server.seen) - before <= 5
        done.set()


@pytest.mark.parametrize("turns", range(1, 13))
async def test_closing_ends_whatever_a_cancelled_request_left(server: Http2Server, turns: int) -> None:
    wire = Http2Wire(ssl.create_default_context)
    request = asyncio.ensure_future(outcome(post(wire, server)))
    for _ in range(turns):
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    async with asyncio.timeout(5):
        await wire.aclose()
    assert type(await outcome(post(wire, server))) is NotSent


@pytest.mark.parametrize("status", ["abc", "0", "-5", "99999999999999999999"])
async def test_an_answer_without_a_status_is_in_doubt(
    wire: Http2Wire, server: Http2Server, status: str
) -> None:
    server.act = lambda request: request.connection.h2.send_headers(
        request.number, [(":status", status)], end_stream=True
    )
    assert type(await outcome(post(wire, server))) is OutcomeUnknown
