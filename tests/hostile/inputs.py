"""Answers that no honest host gives, as they stand on the wire."""

from __future__ import annotations

import gzip
import io
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from http import HTTPStatus

from hostile.host import Trap, plain

MEBI = 1 << 20
GIBI = 1 << 30

_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"transfer-encoding: chunked\r\n\r\n"


def answering(body: bytes, status: HTTPStatus = HTTPStatus.OK, head: str = "") -> Trap:
    """A well-formed answer with this body."""
    answer = plain(body, status, head)
    return lambda: iter([answer])


def a_gigabyte() -> Iterator[bytes]:
    """A gigabyte of JSON text, announced as such."""
    yield _OK + b'content-length: %d\r\n\r\n["' % GIBI
    yield from [b"a" * MEBI] * (GIBI // MEBI)


def a_gigabyte_in_chunks() -> Iterator[bytes]:
    """A gigabyte whose length nobody announces."""
    yield _CHUNKED
    yield from [b"%x\r\n" % MEBI + b"a" * MEBI + b"\r\n"] * (GIBI // MEBI)


def a_gigabyte_in_single_bytes() -> Iterator[bytes]:
    """Chunks of one byte each, so that every byte costs the reader an object."""
    yield _CHUNKED
    yield from [b"1\r\na\r\n" * 100_000] * (GIBI // 100_000)


def endless_headers() -> Iterator[bytes]:
    """A head that doesn't end."""
    yield _OK
    yield from [b"x-a: " + b"b" * 1000 + b"\r\n"] * MEBI


def endless_header() -> Iterator[bytes]:
    """One header that doesn't end."""
    yield _OK + b"x-a: "
    yield from [b"b" * MEBI] * 1024


def endless_chunk_extensions() -> Iterator[bytes]:
    """A chunk whose extension doesn't end."""
    yield _CHUNKED + b"1;x="
    yield from [b"b" * MEBI] * 1024


def endless_trailers() -> Iterator[bytes]:
    """Trailers that don't end, after a body that did."""
    yield _CHUNKED + b"2\r\n[]\r\n0\r\n"
    yield from [b"x-a: " + b"b" * 1000 + b"\r\n"] * MEBI


def endless_interim_answers() -> Iterator[bytes]:
    """The announcement of an answer, again and again."""
    yield from [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 1000] * MEBI


def slow_drip() -> Iterator[bytes]:
    """A byte now and then, each soon enough for a time-out of reading."""
    yield _OK + b"content-length: 1000\r\n\r\n"
    pause = threading.Event()
    for _ in range(1000):
        yield b" "
        pause.wait(0.1)


def silence() -> Iterator[bytes]:
    """Nothing at all."""
    threading.Event().wait(30.0)
    yield b""


@cache
def _packed() -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        for _ in range(100):
            file.write(b" " * MEBI)
    return packed.getvalue()


def gzip_bomb() -> Iterator[bytes]:
    """A few hundred kilobytes that unpack to a tenth of a gigabyte, and say so."""
    body = _packed()
    yield _OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def no_http() -> Iterator[bytes]:
    """Bytes that are no HTTP."""
    yield bytes(range(256)) * 100


def deep(levels: int) -> bytes:
    """An array in an array, so many times."""
    return b"[" * levels + b"]" * levels


def deep_object(levels: int) -> bytes:
    """An object in an object, so many times, never closed."""
    return b'{"id":' * levels


HURTFUL: Mapping[str, Trap] = {
    "a gigabyte, announced": a_gigabyte,
    "a gigabyte in chunks": a_gigabyte_in_chunks,
    "a gigabyte in chunks of a byte": a_gigabyte_in_single_bytes,
    "endless headers": endless_headers,
    "an endless header": endless_header,
    "endless chunk extensions": endless_chunk_extensions,
    "endless trailers": endless_trailers,
    "endless interim answers": endless_interim_answers,
    "a slow drip": slow_drip,
    "a gzip bomb": gzip_bomb,
    "no HTTP at all": no_http,
}
"""Answers that no endpoint can use, by what they are."""

NO_CLOCK_KNOWS = "retry-after: Mon, 01 Jan 99999999999999999999 00:00:00 GMT\r\n"
"""A year that makes Python's own reader of dates overflow."""
