"""HTTP messages from files: what is read, and what is said of those that can't be."""

from __future__ import annotations

import pytest

from deliveryd.http.raw_message import RawRequest, parse_answer, parse_request
from deliveryd.http.wire import WireResponse


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_a_request_is_read_with_its_body_up_to_its_end(end: str) -> None:
    raw = end.join(["POST /receipts/sms?ref=m%201 HTTP/1.1", "Host: x", "X-Sig:  a=b ", "", "a=1\n\nb"])
    assert parse_request(raw.encode()) == RawRequest(
        "POST", "/receipts/sms", b"ref=m%201", [(b"host", b"x"), (b"x-sig", b"a=b")], b"a=1\n\nb"
    )


def test_a_request_without_a_body_ends_with_its_head() -> None:
    assert parse_request(b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n") == RawRequest(
        "GET", "/a", b"b=c", [(b"host", b"x")], b""
    )
    assert parse_request(b"GET http://h/a HTTP/1.0").path == "/a"


def test_an_answer_is_read() -> None:
    raw = b'HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\n\r\n{"code": 1}'
    assert parse_answer(raw) == WireResponse(429, {"retry-after": "7"}, b'{"code": 1}')
    assert parse_answer(b"HTTP/1.1 204").status == 204


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "line 1: expected a status line"),
        (b"200 OK\n\n", "line 1: expected a status line"),
        (b"HTTP/1.1 200 OK\nno header\n\n", "line 2: expected a header"),
        (
            b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n0\r\n",
            "transfer-encoding: chunked: save the body",
        ),
        (b"HTTP/1.1 200 OK\nContent-Encoding: gzip\n\n", "content-encoding: gzip: save the body"),
    ],
)
def test_what_can_not_be_read_is_named(raw: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_answer(raw)


def test_an_answer_is_no_request() -> None:
    with pytest.raises(ValueError, match="expected a request line"):
        parse_request(b"HTTP/1.1 200 OK\n\n")


@pytest.mark.parametrize("version", ["HTTP/2", "HTTP/2.0", "HTTP/3"])
def test_heads_as_tools_print_them_for_later_versions_are_read(version: str) -> None:
    """A status line without words, and the names in lower case."""
    raw = f"{version} 200 \r\ncontent-type: application/json\r\n\r\n{{}}".encode()
    assert parse_answer(raw) == WireResponse(200, {"content-type": "application/json"}, b"{}")
    assert parse_request(f"POST /receipts/sms {version}\n\n".encode()).method == "POST"
