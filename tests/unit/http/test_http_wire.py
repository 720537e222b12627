"""Both wires against servers that answer byte for byte: never sent, in doubt, or answered."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from deliveryd.errors import AnswerUnreadable, BrokenOff, NotSent, OutcomeUnknown, TooLate
from deliveryd.http import asyncio_wire
from deliveryd.http.lenient_answer import LARGEST_HEAD, LenientAnswer
from deliveryd.http.responses import is_page
from deliveryd.http.target import target_of
from deliveryd.http.wire import Wire
from support.wires import (
    FAST,
    HEAD,
    OK,
    STREAMS,
    Kind,
    Peer,
    Serve,
    Server,
    answering,
    ask,
    closing,
    fast_only,
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
    "more behind gzip": (answering(encoded("gzip", gzip.compress(b"ok") + bytes(9))), 200, b"ok"),
    "more behind gzip, byte by byte": (
        answering(bytewise("gzip", gzip.compress(b"ok") + bytes(9))),
        200,
        b"ok",
    ),
    "gzip that is plain": (answering(encoded("gzip", b'{"id": 1}')), 200, b'{"id": 1}'),
    "gzip that is plain, byte by byte": (answering(bytewise("gzip", b'{"id": 1}')), 200, b'{"id": 1}'),
    "deflate that is plain": (answering(encoded("deflate", b'{"id": 1}')), 200, b'{"id": 1}'),
    "brotli that is plain": (answering(encoded("br", b'{"id": 1}')), 200, b'{"id": 1}'),
    "a charset as encoding": (answering(encoded("utf-8", b"\xe4 ok")), 200, b"\xe4 ok"),
    "an empty encoding": (answering(encoded("", b"ok")), 200, b"ok"),
    "no encoding twice": (answering(encoded("identity, none", b"ok")), 200, b"ok"),
    "gzip and a charset": (answering(encoded("gzip,utf-8", gzip.compress(b"ok"))), 200, b"ok"),
    "gzip twice": (answering(encoded("gzip, gzip", gzip.compress(gzip.compress(b"ok")))), 200, b"ok"),
    "deflate that is plain, byte by byte": (answering(bytewise("deflate", b'{"id": 1}')), 200, b'{"id": 1}'),
    "the largest body": (
        answering(b"HTTP/1.1 200 OK\r\ncontent-length: 64\r\n\r\n" + b"x" * 64),
        200,
        b"x" * 64,
    ),
}


LENGTH = b"content-length: 2\r\n\r\nok"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n"
ODD = {
    "a folded header": HEAD + b"x-a: one\r\n two\r\n" + LENGTH,
    "a folded length": HEAD + b"content-length:\r\n\t2\r\n\r\nok",
    "a folded line at the beginning": HEAD + b" x-a: one\r\n" + LENGTH,
    "a blank before the colon": HEAD + b"x-a : one\r\ncontent-length\t: 2\r\n\r\nok",
    "line feeds alone": b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    "line feeds in the middle": HEAD + b"x-a: one\ncontent-length: 2\r\n\nok",
    "a carriage return alone": HEAD + b"x-a: one\rtwo\r\n" + LENGTH,
    "a zero byte": HEAD + b"x-a: one\x00two\r\n" + LENGTH,
    "blank lines and blanks before it": b"\r\n \r\n" + HEAD + LENGTH,
    "a line without a colon": HEAD + b"one two\r\n" + LENGTH,
    "a name that is none": HEAD + "n\xe4me: one\r\n two\r\n: no name\r\n".encode() + LENGTH,
    "no status text": b"HTTP/1.1 200\r\n" + LENGTH,
    "two blanks before the status": b"HTTP/1.1  200  OK\r\n" + LENGTH,
    "a small protocol": b"http/1.1 200 ok\r\n" + LENGTH,
    "another version": b"HTTP/1.2 200 OK\r\n" + LENGTH,
    "version 2": b"HTTP/2 200\r\n" + LENGTH,
    "the length twice": HEAD + b"content-length: 2\r\n" + LENGTH,
    "the length twice in one": HEAD + b"content-length: 2, 2\r\n\r\nok",
    "an empty length": HEAD + b"content-length: \r\nconnection: close\r\n\r\nok",
    "chunks and a length": CHUNKED + b"content-length: 99\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "a length and chunks": HEAD
    + b"content-length: 1\r\ntransfer-encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "chunks twice": CHUNKED + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "identity and a length": HEAD + b"transfer-encoding: identity\r\n" + LENGTH,
    "identity until the end": HEAD + b"transfer-encoding: identity\r\n\r\nok",
    "an odd interim answer": b"HTTP/1.1 100\nx-a : 1\n\n" + HEAD + LENGTH,
    "an odd answer behind an interim one": b"HTTP/1.1 100 Go\r\n\r\n" + HEAD + b"x-a : 1\r\n" + LENGTH,
    "an upgrade that is offered": HEAD + b"connection: upgrade\r\nupgrade: h2,h2c\r\n" + LENGTH,
    "odd chunks under an odd head": HEAD
    + b"x-a : 1\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\nok\n0\r\nno trailer\r\n\r\n",
}
ODD_CHUNKS = {
    "chunks ended by line feeds": CHUNKED + b"\r\n2\nok\n0\n\n",
    "blanks behind a chunk's size": CHUNKED + b"\r\n2  \r\nok\r\n0\r\n\r\n",
    "no line end behind a chunk": CHUNKED + b"\r\n2\r\nok0\r\n\r\n",
    "no empty line behind the chunks": CHUNKED + b"\r\n2\r\nok\r\n0\r\n",
    "an odd trailer": CHUNKED + b"\r\n2\r\nok\r\n0\r\nx-a : b\r\n\r\n",
}


def _drop_by_drop(answer: bytes) -> Serve:
    """Send an answer byte by byte, and close the connection."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        for byte in answer:
            await peer.send(bytes([byte]))
            await anyio.lowlevel.checkpoint()

    return serve


@pytest.mark.parametrize("serve", [closing, _drop_by_drop])
@pytest.mark.parametrize("case", ODD)
async def test_an_odd_answer_is_read(wire: Wire, case: str, serve: Callable[[bytes], Serve]) -> None:
    """What can be understood is, as RFC 9112 lets a recipient do, however it arrives."""
    async with serving(serve(ODD[case])) as server:
        answer = await ask(wire, server.target())
        assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize("serve", [closing, _drop_by_drop])
@pytest.mark.parametrize("case", ODD_CHUNKS)
async def test_odd_chunks_are_read(wire: Wire, case: str, serve: Callable[[bytes], Serve]) -> None:
    """So are chunks that are separated otherwise than they should be."""
    async with serving(serve(ODD_CHUNKS[case])) as server:
        answer = await ask(wire, server.target())
        assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize("case", ["a folded header", "line feeds alone", "a length and chunks"])
async def test_a_connection_with_an_odd_answer_is_not_used_again(wire: Wire, case: str) -> None:
    """What stands behind such an answer could be taken for the answer to another request."""
    async with serving(answering(ODD[case] + OK)) as server:
        for _ in range(2):
            answer = await ask(wire, server.target())
            assert answer.body == b"ok"
        assert server.connections == 2


async def test_a_folded_header_is_one_header(wire: Wire) -> None:
    """Its lines are joined by a blank (RFC 9112 5.2), and those that are no header leave the others alone."""
    async with serving(closing(ODD["a folded header"])) as server:
        answer = await ask(wire, server.target())
        assert answer.headers["x-a"] == "one two"


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
    "gzip that is neither that nor a text": closing(encoded("gzip", b"\x00\xff\xfe")),
    "gzip with a wrong sum": closing(encoded("gzip", gzip.compress(b"ok")[:-8] + bytes(8))),
    "more behind deflate": closing(encoded("deflate", zlib.compress(b"ok") + zlib.compress(b"more"))),
    "half of deflate": closing(encoded("deflate", b"x")),
    "gzip of too much": closing(encoded("gzip", gzip.compress(bytes(65)))),
    "brotli": closing(encoded("br", b"\x0b\x01\x80ok\x03")),
    "gzip three times": closing(encoded("gzip, gzip, gzip", gzip.compress(gzip.compress(b"ok")))),
    "too much with a length": closing(HEAD + b"content-length: 65\r\n\r\n" + b"x" * 65),
    "too much in chunks": closing(chunked(*[b"x" * 13] * 5)),
    "too much until the end": closing(HEAD + b"\r\n" + b"x" * 65),
    "too large a head": closing(HEAD + b"x-a: " + b"x" * (4 * LARGEST_HEAD) + b"\r\n\r\n"),
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
    "compressed": (closing(PROXY + b"content-encoding: gzip\r\ncontent-length: 1\r\n\r\n\x1f"), b""),
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


@pytest.mark.slow
async def test_a_peer_that_never_pauses_is_given_up_as_well(wire: Wire) -> None:
    """16 MiB in chunks of a byte take seconds to read: there is always more in the socket."""
    chunks = b"1\r\na\r\n" * (1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer, suppress(OSError):
                peer.recv(1000)
                peer.sendall(chunked().removesuffix(b"0\r\n\r\n"))
                for _ in range(16):
                    peer.sendall(chunks)
                peer.sendall(b"0\r\n\r\n")

        sending = threading.Thread(target=serve)
        sending.start()
        target = target_of(f"http://127.0.0.1:{server.getsockname()[1]}/")
        with pytest.raises(OutcomeUnknown, match=r"no whole answer within 0\.3 s"):
            await ask(wire, target, deadline=0.3, max_body=1 << 30)
        await anyio.to_thread.run_sync(sending.join)


async def test_without_a_whole_head_there_is_no_status(wire: Wire) -> None:
    """Half a head, and an interim answer, say nothing of the request."""
    for answer in (b"HTTP/1.1 407 No\r\nretry", b"HTTP/1.1 100 Continue\r\n\r\n", b""):
        async with serving(closing(answer)) as server:
            with pytest.raises(OutcomeUnknown) as caught:
                await ask(wire, server.target())
            assert not isinstance(caught.value, BrokenOff)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 No\r\nretry", b"HT", b"220 mail\r\n", b"\x15\x03\x01"])
async def test_that_something_came_is_told_from_nothing(wire: Wire, answer: bytes) -> None:
    """A repeat may bring the same bytes again; a connection that ended without any may have been bad luck."""
    for came in (answer, b""):
        async with serving(closing(came)) as server:
            with pytest.raises(OutcomeUnknown) as caught:
                await ask(wire, server.target())
            assert isinstance(caught.value, AnswerUnreadable) == bool(came)


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


# what is kept between requests, and what is ended


@fast_only
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


@fast_only
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


async def test_endless_heads_and_trailers_are_bounded(wire: Wire) -> None:
    """A server can't fill the memory with what isn't body: the connection is closed soon."""
    line = b"x-a: " + b"x" * 1000 + b"\r\n"
    starts = [HEAD, b"HTTP/1.1 100 Continue\r\n\r\n", chunked(b"ab")[: -len(b"\r\n")]]
    repeated = [line, b"HTTP/1.1 100 Continue\r\n\r\n" * 40, line]

    for start, again in zip(starts, repeated, strict=True):

        async def serve(peer: Peer, start: bytes = start, again: bytes = again) -> None:
            await peer.request()
            await peer.send(start)
            for _ in range(64 * LARGEST_HEAD // len(again)):
                await peer.send(again)
            await peer.send(b"x")

        async with serving(serve) as server:
            with pytest.raises(OutcomeUnknown, match="larger than"):
                await ask(wire, server.target())


@fast_only
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


@pytest.mark.parametrize("unit", [b" ", b"\n ", b"<!--", b"<?xml ", b"\t<!-- -->"])
def test_what_is_no_page_and_no_chunk_is_told_fast(unit: bytes) -> None:
    """The expressions take no longer than the length of what they look at, whatever it is made of."""
    for _ in range(50):
        is_page(unit * 4096)
    answer = LenientAnswer()
    list(answer.feed(b"HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n"))
    with suppress(ValueError):
        list(answer.feed(unit * (LARGEST_HEAD // len(unit))))
