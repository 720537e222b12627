"""What works on large texts does it in slices: wherever they are cut, the result is the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email import message_from_bytes, policy
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveryd.channels.mail import html_text, mime
from deliveryd.service import array_text

_words = st.text(st.sampled_from("ab <>&\n\t\xa0\u3000\u2028\x1c"), max_size=40)
_lines = st.lists(
    st.sampled_from(
        ["a", "b c", ".", "\n", "\r\n", "\r", " ", "\t", "\x0c", "é", "一", "=", "=3D", "\0", "x" * 76]
    ),
    max_size=30,
).map("".join)


@given(_words, st.integers(1, 8))
def test_white_space_becomes_one_space(text: str, size: int) -> None:
    """As one expression over the whole text would do it."""
    with patch.object(html_text, "_SLICE", size):
        assert html_text.single_spaced(text) == re.sub(r"\s+", " ", text)


@given(_lines, st.integers(1, 200))
def test_a_text_arrives_as_it_was_written(text: str, size: int) -> None:
    """In lines that any mail server takes, whichever encoding they have."""
    with patch.object(mime, "_SLICE", size):
        part = mime.text_part("plain", text)
    head = f"Content-Type: {part.content_type}\r\nContent-Transfer-Encoding: {part.encoding}\r\n\r\n"
    message = message_from_bytes(head.encode() + part.lines, policy=policy.SMTP)
    arrived = message.get_payload(decode=True)
    assert isinstance(arrived, bytes)
    written = text.replace("\r\n", "\n").replace("\r", "\n")
    assert arrived.decode().replace("\r\n", "\n") == (written if written.endswith("\n") else f"{written}\n")
    assert part.lines.isascii()
    assert part.lines.count(b"\r\n") == part.lines.count(b"\n") == part.lines.count(b"\r")
    assert max(map(len, part.lines.split(b"\r\n"))) <= 78


@pytest.mark.parametrize("text", ["", "one\ntwo\n", "é", "一" * 200, "x" * 200])
def test_the_shortest_encoding_is_chosen(text: str) -> None:
    """Short lines of ASCII go as they are, and what is mostly something else in base64."""
    encodings = {"": "7bit", "one\ntwo\n": "7bit", "一" * 200: "base64"}
    assert mime.text_part("plain", text).encoding == encodings.get(text, "quoted-printable")


@given(st.text(st.sampled_from('[]{}"\\,: 1\n'), max_size=40), st.integers(1, 8))
def test_an_element_ends_where_it_ends(text: str, size: int) -> None:
    """Through whichever windows an answer of the queue is looked at."""

    def found() -> Iterator[tuple[int, int] | str]:
        try:
            yield from array_text.spans(f"[{text}".encode())
        except array_text.NoArray as error:
            yield str(error)

    whole = list(found())
    with patch.object(array_text, "_WINDOW", size):
        assert list(found()) == whole
