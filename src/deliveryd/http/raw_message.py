"""Parses HTTP messages from files, as they went over the wire: the body reaches to the end of the file."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from deliveryd.http.wire import Header, WireResponse

_BLANK = re.compile(rb"\r?\n\r?\n")
_REQUEST = re.compile(r"([A-Z]+) (\S+) HTTP/(?:1\.[01]|2(?:\.0)?|3)")
_STATUS = re.compile(r"HTTP/(?:1\.[01]|2(?:\.0)?|3) ([1-5][0-9]{2})(?: .*)?")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")


class RawRequest(NamedTuple):
    """A request. `path` and `query` are as they were written; header names are lower-case."""

    method: str
    path: str
    query: bytes
    headers: list[Header]
    body: bytes


def parse_request(raw: bytes) -> RawRequest:
    """Parse a request. Raises ValueError, with what is expected."""
    first, headers, body = _parts(raw, "transfer-encoding")
    match = _REQUEST.fullmatch(first)
    target = _split(match[2]) if match is not None else None
    if match is None or target is None:
        raise ValueError('line 1: expected a request line such as "POST /receipts/sms HTTP/1.1"')
    return RawRequest(match[1], target.path, target.query.encode("latin-1"), headers, body)


def _split(target: str) -> SplitResult | None:
    try:
        return urlsplit(target)
    except ValueError:
        return None


def parse_answer(raw: bytes) -> WireResponse:
    """Parse an answer. Raises ValueError, with what is expected."""
    first, headers, body = _parts(raw, "transfer-encoding", "content-encoding")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise ValueError('line 1: expected a status line such as "HTTP/1.1 200 OK"')
    named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return WireResponse(int(match[1]), named, body)


def _parts(raw: bytes, *codings: str) -> tuple[str, list[Header], bytes]:
    """Return the first line, the headers and the body, not encoded by these headers. Raises ValueError."""
    end = _BLANK.search(raw)
    head, body = (raw, b"") if end is None else (raw[: end.start()], raw[end.end() :])
    first, *lines = head.decode("latin-1").replace("\r\n", "\n").rstrip("\n").split("\n")
    headers: list[Header] = []
    for number, line in enumerate(lines, 2):
        match = _HEADER.fullmatch(line)
        if match is None:
            raise ValueError(f'line {number}: expected a header such as "Content-Type: application/json"')
        headers.append((match[1].lower().encode("latin-1"), match[2].encode("latin-1")))
    for name in codings:
        value = dict(headers).get(name.encode(), b"identity")
        if value != b"identity":
            raise ValueError(f"{name}: {value.decode('latin-1')}: save the body without an encoding")
    return first, headers, body
