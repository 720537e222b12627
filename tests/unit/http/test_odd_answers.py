"""Odd answers byte for byte over real sockets, and what each means from whom: one table for all who ask."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from deliveryd.channels.base import Accepted, InDoubt
from deliveryd.directory.base import Terms
from deliveryd.directory.http import open_http_source
from deliveryd.directory.http_options import HttpDirectoryOptions
from deliveryd.errors import DirectoryUnavailable, ServiceRefused, ServiceUnavailable, ServiceUnreadable
from deliveryd.http.client import build_client
from deliveryd.service.client import ServiceClient
from deliveryd.testing.samples import dispatch, opened
from support.messages import message
from support.wires import closing, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The fast wire, which the worker has."""
    return "asyncio"


BODIES = {
    "queue": json.dumps([message(1)]).encode(),
    "events": b'{"ok": true}',
    "settings": b'{"content": {"en": {"sms": {"text": "hi"}}}}',
    "customer": b'{"name": "Ada"}',
    "provider": b'{"id": "p-1"}',
}
"""A good answer from each."""


class Expected(NamedTuple):
    """What an answer means from whom.

    `doubt`: in doubt, and repeated as the policy says; `unreadable`: in doubt, and repeated once at most.
    """

    queue: str
    events: str
    settings: str
    customer: str
    provider: str


READ = Expected("taken", "accepted", "settings", "found", "accepted p-1")
PAGE_IN_ITS_PLACE = Expected("outage", "outage", "outage", "outage", "unreadable")
BROKEN = Expected("lost", "outage", "outage", "outage", "unreadable")

CUT = BROKEN._replace(queue="taken, rest lost")

OK = b"HTTP/1.1 200 OK\r\n"
PAGE = b"<!DOCTYPE html>\n<html><head><title>Log in</title></head></html>"

Answer = Callable[[bytes], bytes]
"""Makes the bytes of an answer from those of its body."""


def plain(head: bytes, first: bytes = OK) -> Answer:
    """A head, then a length."""
    return lambda body: b"%b%bContent-Length: %d\r\n\r\n%b" % (first, head, len(body), body)


def coded(coding: bytes, code: Callable[[bytes], bytes] = bytes) -> Answer:
    return lambda body: plain(b"Content-Encoding: %b\r\n" % coding)(code(body))


def told(rest: bytes, first: bytes = OK) -> Answer:
    """A head in which `N` is the length and `B` the body."""
    return lambda body: (first + rest).replace(b"<N>", b"%d" % len(body)).replace(b"<B>", body)


def chunks(template: bytes, head: bytes = b"Transfer-Encoding: chunked\r\n\r\n") -> Answer:
    """Chunks in which `N` is the length of the body in hexadecimal."""
    return lambda body: OK + head + template.replace(b"<N>", b"%x" % len(body)).replace(b"<B>", body)


def always(status: bytes, body: bytes, head: bytes = b"") -> Answer:
    """The same whoever is asked."""
    return lambda _: b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, head, len(body), body)


def raw(answer: bytes) -> Answer:
    return lambda _: answer


ONE_CHUNK = b"<N>\r\n<B>\r\n0\r\n\r\n"

ROWS: dict[str, tuple[Answer, Expected]] = {
    # as it should be
    "good": (plain(b""), READ),
    "gzip": (coded(b"gzip", gzip.compress), READ),
    "chunks": (chunks(ONE_CHUNK), READ),
    # RFC 9110 8.4
    "coding utf-8": (coded(b"utf-8"), READ),
    "coding UTF-8, identity": (coded(b"UTF-8, identity"), READ),
    "no coding": (coded(b""), READ),
    "coding none": (coded(b"none"), READ),
    "coding 8bit": (coded(b"8bit"), READ),
    "coding application/json": (coded(b"application/json"), READ),
    "coding gzip of plain text": (coded(b"gzip"), READ),
    "coding br of plain text": (coded(b"br"), READ),
    "coding zstd of plain text": (coded(b"zstd"), READ),
    "coding deflate of plain text": (coded(b"deflate"), READ),
    "codings gzip, utf-8": (coded(b"gzip, utf-8", gzip.compress), READ),
    "codings gzip, gzip of one": (coded(b"gzip, gzip", gzip.compress), READ),
    "codings on two lines": (
        lambda body: plain(b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\n")(gzip.compress(body)),
        READ,
    ),
    "coding gzip;q=1.0": (coded(b"gzip;q=1.0", gzip.compress), READ),
    "gzip with zeros behind": (coded(b"gzip", lambda body: gzip.compress(body) + bytes(8)), READ),
    "deflate without a head": (coded(b"deflate", lambda body: zlib.compress(body)[2:-4]), READ),
    "brotli": (always(b"200 OK", b"\x0b\x01\x80ok\x03\xff", b"Content-Encoding: br\r\n"), BROKEN),
    "half of gzip": (
        coded(b"gzip", lambda body: gzip.compress(body)[:-9]),
        CUT,
    ),
    # RFC 9112 2.2, 4, 5
    "a folded header": (plain(b"X-A: one\r\n two\r\n"), READ),
    "a folded length": (told(b"Content-Length:\r\n <N>\r\n\r\n<B>"), READ),
    "a fold behind the status line": (plain(b" X-A: one\r\n"), READ),
    "a blank before the colon": (told(b"Content-Length : <N>\r\n\r\n<B>"), READ),
    "bare line feeds": (told(b"X-A: 1\nContent-Length: <N>\n\n<B>", b"HTTP/1.1 200 OK\n"), READ),
    "some bare line feeds": (plain(b"X-A: 1\n"), READ),
    "a bare carriage return": (plain(b"X-A: 1\r2\r\n"), READ),
    "a zero byte in a header": (plain(b"X-A: 1\x002\r\n"), READ),
    "blank lines before the status": (plain(b"", b"\r\n\r\n" + OK), READ),
    "a line without a colon": (plain(b"Session started\r\n"), READ),
    "a name with a blank": (plain(b"X A: 1\r\n"), READ),
    "a name in UTF-8": (plain("X-\xc4: 1\r\n".encode()), READ),
    "an empty name": (plain(b": 1\r\n"), READ),
    "no reason": (plain(b"", b"HTTP/1.1 200\r\n"), READ),
    "a reason in UTF-8": (plain(b"", "HTTP/1.1 200 Sch\xf6n\r\n".encode()), READ),
    "two blanks in the status line": (plain(b"", b"HTTP/1.1  200 OK\r\n"), READ),
    "a lower-case protocol": (plain(b"", b"http/1.1 200 OK\r\n"), READ),
    "HTTP/1.0": (told(b"\r\n<B>", b"HTTP/1.0 200 OK\r\n"), READ),
    "HTTP/1.2": (plain(b"", b"HTTP/1.2 200 OK\r\n"), READ),
    "HTTP/2": (plain(b"", b"HTTP/2 200\r\n"), READ),
    "an odd 100 before it": (plain(b"", b"HTTP/1.1 100 \nX-A : 1\n\n" + OK), READ),
    "an upgrade offered": (plain(b"Connection: Upgrade\r\nUpgrade: h2,h2c\r\n"), READ),
    # RFC 9112 6, 7
    "the length twice": (told(b"Content-Length: <N>\r\nContent-Length: <N>\r\n\r\n<B>"), READ),
    "the length twice in one": (told(b"Content-Length: <N>, <N>\r\n\r\n<B>"), READ),
    "an empty length": (told(b"Content-Length:\r\n\r\n<B>"), READ),
    "different lengths": (told(b"Content-Length: <N>\r\nContent-Length: 3\r\n\r\n<B>"), BROKEN),
    "a length that is no number": (told(b"Content-Length: some\r\n\r\n<B>"), BROKEN),
    "chunks beside a length": (
        chunks(ONE_CHUNK, b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n"),
        READ,
    ),
    "a length beside chunks": (
        chunks(ONE_CHUNK, b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"),
        READ,
    ),
    "chunks named twice": (
        chunks(ONE_CHUNK, b"Transfer-Encoding: chunked, chunked\r\n\r\n"),
        READ,
    ),
    "identity beside a length": (plain(b"Transfer-Encoding: identity\r\n"), READ),
    "identity alone": (told(b"Transfer-Encoding: identity\r\n\r\n<B>"), READ),
    "chunks in HTTP/1.0": (
        lambda body: chunks(ONE_CHUNK)(body).replace(b"1.1", b"1.0", 1),
        READ,
    ),
    "chunks with bare line feeds": (chunks(b"<N>\n<B>\n0\n\n"), READ),
    "blanks behind a chunk's size": (chunks(b"<N>  \r\n<B>\r\n0\r\n\r\n"), READ),
    "chunks that aren't separated": (chunks(b"<N>\r\n<B>0\r\n\r\n"), READ),
    "an extension of a chunk": (chunks(b'<N>;a="b"\r\n<B>\r\n0\r\n\r\n'), READ),
    "chunks without a last empty line": (chunks(b"<N>\r\n<B>\r\n0\r\n"), READ),
    "an odd trailer": (chunks(b"<N>\r\n<B>\r\n0\r\nX-A : 1\r\n\r\n"), READ),
    "chunks without an end": (
        chunks(b"<N>\r\n<B>\r\n"),
        CUT,
    ),
    "half of a body": (told(b"Content-Length: 99999\r\n\r\n<B>"), CUT),
    # no answer at all
    "another protocol": (raw(b"220 mail.example.org ESMTP\r\n"), BROKEN),
    "a TLS alert": (raw(b"\x15\x03\x03\x00\x02\x02\x28"), BROKEN),
    "half of a head": (raw(b"HTTP/1.1 200 OK\r\nContent-Le"), BROKEN),
    "nothing": (raw(b""), BROKEN._replace(provider="doubt")),
    # something else in its place
    "a page": (always(b"200 OK", PAGE, b"Content-Type: text/html\r\n"), PAGE_IN_ITS_PLACE),
    "a page that claims to be JSON": (
        always(b"200 OK", b"\n <html>", b"Content-Type: application/json\r\n"),
        PAGE_IN_ITS_PLACE,
    ),
    "a page without a head": (always(b"200 OK", b'<a href="/login">Found</a>.'), PAGE_IN_ITS_PLACE),
    "a page after a comment": (always(b"200 OK", b"<!-- proxy 3 -->\nLog in first"), PAGE_IN_ITS_PLACE),
    "half of a page": (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + PAGE), PAGE_IN_ITS_PLACE),
    "404 with a page": (
        always(b"404 Not Found", PAGE),
        PAGE_IN_ITS_PLACE._replace(queue="refused 404", events="refused 404"),
    ),
    "404 with nothing": (
        always(b"404 Not Found", b""),
        Expected("refused 404", "refused 404", "none", "unknown", "Refused"),
    ),
    "404 with JSON": (
        always(b"404 Not Found", b'{"error": "no such thing"}'),
        Expected("refused 404", "refused 404", "none", "unknown", "Refused"),
    ),
    "404 with a text": (
        always(b"404 Not Found", b"404 page not found\n"),
        Expected("refused 404", "refused 404", "outage", "unknown", "Refused"),
    ),
    "400 with a page": (
        always(b"400 Bad Request", PAGE),
        Expected("refused 400", "refused 400", "outage", "outage", "unreadable"),
    ),
    "410 with a page": (
        always(b"410 Gone", PAGE),
        PAGE_IN_ITS_PLACE._replace(queue="refused 410", events="refused 410"),
    ),
    "413 with a page": (
        always(b"413 Too Large", PAGE),
        Expected("refused 413", "refused 413", "outage", "outage", "Refused"),
    ),
    "an empty 200": (
        always(b"200 OK", b""),
        Expected("empty", "accepted", "outage", "outage", "unreadable"),
    ),
    "204": (
        raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
        Expected("empty", "accepted", "outage", "outage", "unreadable"),
    ),
    "a text": (always(b"200 OK", b"OK"), Expected("lost", "accepted", "outage", "outage", "unreadable")),
    "half of JSON": (
        always(b"200 OK", b'{"id": "p'),
        Expected("lost", "accepted", "unreadable", "outage", "unreadable"),
    ),
    "JSON of something else": (
        always(b"200 OK", b'{"status": "up"}'),
        Expected("lost", "accepted", "unreadable", "found", "accepted without id"),
    ),
    "a byte order mark": (lambda body: plain(b"")(b"\xef\xbb\xbf" + body), READ),
}


async def no_pause(_seconds: float) -> None:
    """Repeat a call at once."""


async def from_queue(client: ServiceClient) -> str:
    batch = await client.take(5)
    if batch.fault is not None:
        return "taken, rest lost" if batch.messages else "lost"
    return "taken" if batch.messages else "empty"


async def from_events(client: ServiceClient) -> str:
    await client.report(["{}"])
    return "accepted"


async def from_settings(client: ServiceClient) -> str:
    try:
        client.parse_settings(1, await client.fetch_settings(1))
    except ServiceUnreadable:
        return "unreadable"
    except ServiceRefused as error:
        return "none" if error.status in {400, 404, 410, 422} else "outage"
    return "settings"


ASK_SERVICE: dict[str, Callable[[ServiceClient], Awaitable[str]]] = {
    "queue": from_queue,
    "events": from_events,
    "settings": from_settings,
}


async def from_service(asked: str, url: str) -> str:
    client = ServiceClient(build_client(timeout=10.0), url, sleep=no_pause)
    try:
        return await ASK_SERVICE[asked](client)
    except ServiceUnavailable:
        return "outage"
    except ServiceRefused as error:
        return f"refused {error.status}"
    finally:
        await client.aclose()


async def from_directory(url: str) -> str:
    options = HttpDirectoryOptions.model_validate(
        {"url": f"{url}/{{customerId}}", "fields": {"name": "/name"}}
    )
    source = open_http_source(options, Terms(cache_ttl=1.0, timeout=10.0, concurrency=1))
    try:
        return "found" if await source.look_up([7]) else "unknown"
    except DirectoryUnavailable:
        return "outage"
    finally:
        await source.aclose()


async def from_provider(url: str) -> str:
    options: dict[str, Any] = {"url": url, "json": {"text": "{content.text}"}, "provider_id": "/id"}
    async with opened("http", options, block="sms") as channel:
        verdict = await channel.send(dispatch("sms", {"text": "hi"}))
    match verdict:
        case Accepted(provider_id=str(id_)):
            return f"accepted {id_}"
        case Accepted():
            return "accepted without id"
        case InDoubt():
            return "unreadable" if verdict.unreadable else "doubt"
    return type(verdict).__name__


@pytest.mark.parametrize("asked", Expected._fields)
@pytest.mark.parametrize("case", ROWS)
async def test_what_an_odd_answer_means(case: str, asked: str) -> None:
    """What can be read is; what something else said, or nobody can read, is nobody's answer."""
    answer, expected = ROWS[case]
    async with serving(closing(answer(BODIES[asked]))) as server:
        url = f"http://127.0.0.1:{server.port}"
        if asked == "customer":
            found = await from_directory(url)
        elif asked == "provider":
            found = await from_provider(url)
        else:
            found = await from_service(asked, url)
    assert found == getattr(expected, asked)
