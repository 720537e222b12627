"""How a text is written into a mail: 7bit, quoted-printable or base64 (RFC 2045).

Python's email package works on a whole text in single calls, which hold the interpreter, also in a thread.
"""

from __future__ import annotations

from binascii import b2a_base64, b2a_qp
from collections.abc import Iterator
from typing import NamedTuple

_SLICE = 16 << 10
"""Bytes that one call works on: well below a millisecond."""

_LONGEST_LINE = 78
"""Characters of a line that is sent as it is (RFC 5322, section 2.1.1)."""

_LOOKED_AT = 1000
"""Bytes from which it is judged which encoding is the shorter one."""

_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\t\n"))
"""What servers refuse or drop, whatever encodes it but base64."""

_BASE64_LINE = 57
"""Bytes that become a line of 76 characters."""


class TextPart(NamedTuple):
    """A text of a mail: its kind after `text/`, and the lines by which it is sent, each with CRLF."""

    kind: str
    text: str
    encoding: str
    lines: bytes

    @property
    def content_type(self) -> str:
        """The header Content-Type."""
        return f'text/{self.kind}; charset="utf-8"'


def text_part(kind: str, text: str) -> TextPart:
    """Encode a text. Raises UnicodeEncodeError."""
    data = text.encode().replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    has_controls = len(data.translate(None, _CONTROLS)) < len(data)
    if not has_controls and data.isascii() and _has_short_lines(data):
        return TextPart(kind, text, "7bit", data.replace(b"\n", b"\r\n"))
    start = data[:_LOOKED_AT]
    if has_controls or len(b2a_qp(start)) > len(b2a_base64(start.replace(b"\n", b"\r\n"))):
        data = data.replace(b"\n", b"\r\n")
        encoding, lines = "base64", b"".join(_base64(data))
    else:
        encoding, lines = "quoted-printable", b"".join(_quoted_printable(data))
    return TextPart(kind, text, encoding, lines.replace(b"\n", b"\r\n"))


def _has_short_lines(data: bytes) -> bool:
    begin = 0
    while begin < len(data):
        end = data.rfind(b"\n", begin, begin + _LONGEST_LINE + 1)
        if end < 0:
            return False
        begin = end + 1
    return True


def _base64(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), _BASE64_LINE):
        yield b2a_base64(data[begin : begin + _BASE64_LINE])


def _quoted_printable(data: bytes) -> Iterator[bytes]:
    begin = 0
    while begin < len(data):
        end = data.rfind(b"\n", begin, begin + _SLICE) + 1
        if end:
            yield b2a_qp(data[begin:end])
        else:  # within a long line: of "=3D", for which there is room, "=" stays as the soft line break
            end = begin + _SLICE
            yield b2a_qp(data[begin:end] + b"=")[: -len("3D")] + b"\n"
        begin = end
