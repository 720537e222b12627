"""Reads an answer that the strict parsers refuse, and writes it again in their form.

What a recipient may put right is put right: line ends, blank and folded lines, white space around names
(RFC 9112 2.2, 5.1, 5.2), control characters in values (RFC 9110 5.5), the framing (RFC 9112 6.3) and what
separates chunks (7.1). A line that is no header is left out. The head has `Connection: close`, and its body
reaches to the end of the connection if it was chunked, so that nothing else is read from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from deliveryd.http.wire import Header

LARGEST_HEAD = 64 * 1024
"""Most bytes of an answer without bytes of its body: its head, its trailers."""

_START = b"HTTP/"
_END = re.compile(rb"\n\r?\n")
_LINE_END = re.compile(rb"\r?\n")
_STATUS = re.compile(rb"HTTP/\d(?:\.\d+)?[ \t]+([1-9]\d\d)(?!\d).*", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HEADER = _NAME.pattern + rb":[^\x00-\x08\x0a-\x1f\x7f]*\r\n"
_STRICT = rb"HTTP/1\.[01] [2-9]\d\d(?: [^\x00-\x08\x0a-\x1f\x7f]*)?\r\n(?:" + _HEADER + rb")*+\r\n"
_LENGTH_LINE = re.compile(
    rb"\n(?:content-length:[ \t]*\d{1,19}|transfer-encoding:[ \t]*chunked)[ \t]*\r", re.IGNORECASE
)
_FRAMING_LINE = re.compile(rb"\n(?:content-length|transfer-encoding):", re.IGNORECASE)
_CHUNK = re.compile(rb"[ \t]*+(?:\r?\n[ \t]*+)?([0-9A-Fa-f]{1,15}+)[ \t]*+(?:;[^\n]*+|\r)?\n")
_CHUNK_BEGUN = re.compile(rb"[ \t]*+(?:\r?\n?[ \t]*+)?[0-9A-Fa-f]{0,15}+[ \t]*+(?:;[^\n]*+)?\r?")
_DIGITS = re.compile(rb"\d{1,19}")
_BLANK = b" \t\r\n"

_OF_CONNECTION = frozenset({
    b"connection", b"keep-alive", b"upgrade", b"content-length", b"transfer-encoding"
})  # fmt: skip


def end_of_head(raw: bytes) -> int | None:
    """Return where an answer's head ends; None: it isn't complete. Raises ValueError if it can't be one."""
    begin = len(raw) - len(raw.lstrip(_BLANK))
    if not _START.startswith(raw[begin : begin + len(_START)].upper()):
        raise ValueError("no status line")
    end = _END.search(raw, begin)
    return None if end is None else end.end()


def is_strict(head: bytes) -> bool:
    """Whether a strict parser reads the head of a final answer as it is, the framing included."""
    if not re.fullmatch(_STRICT, head):
        return False
    count = len(_FRAMING_LINE.findall(head))
    return count == 0 or (count == 1 and _LENGTH_LINE.search(head) is not None)


class LenientAnswer:
    """One answer as it arrives, with the interim ones before it. Raises ValueError for what isn't HTTP."""

    def __init__(self) -> None:
        self._raw = b""
        self._in_body = False
        self._is_chunked = False
        self._left = 0  # bytes of the present chunk that are still to come
        self.is_over = False
        """Whether the last chunk was read: the body is complete."""

    @property
    def breaks_off(self) -> bool:
        """Whether the answer isn't whole if the connection ends now, though no length shows it."""
        return not self._in_body or (self._is_chunked and not self.is_over)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what is known of it by now, in strict form."""
        is_long = len(self._raw) > len(_START)
        self._raw += data
        if is_long and not self._in_body and b"\n" not in data:
            return
        while not self._in_body:
            end = end_of_head(self._raw)
            if end is None:
                return
            head, self._raw = self._raw[:end], self._raw[end:]
            yield self._tidied(head)
        raw, self._raw = self._raw, b""
        if self._is_chunked:
            yield from self._chunks(raw)
        elif raw:
            yield raw

    def _tidied(self, head: bytes) -> bytes:
        first, *lines = _LINE_END.split(head.strip(_BLANK))
        status = _STATUS.fullmatch(first)
        if status is None:
            raise ValueError("no status line")
        headers = _headers(lines)
        kept = [header for header in headers if header[0].lower() not in _OF_CONNECTION]
        if status[1] >= b"200":  # not an interim answer
            self._in_body = True
            codings = _codings(headers)
            self._is_chunked = codings[-1:] == [b"chunked"]
            kept += [] if codings else _lengths(headers)
            kept.append((b"connection", b"close"))
        return b"\r\n".join([b"HTTP/1.1 %b " % status[1], *map(b": ".join, kept), b"", b""])

    def _chunks(self, raw: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(raw) and not self.is_over:
            if self._left:
                piece = raw[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                yield piece
                continue
            line = _CHUNK.match(raw, at)
            if line is None:
                self._raw = raw[at:]
                if not _CHUNK_BEGUN.fullmatch(self._raw) or len(self._raw) > LARGEST_HEAD:
                    raise ValueError("no chunk")
                return
            at, self._left = line.end(), int(line[1], 16)
            self.is_over = not self._left


def _headers(lines: Sequence[bytes]) -> list[Header]:
    headers: list[Header] = []
    is_kept = False  # whether the line before is a header
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            if is_kept:
                name, value = headers[-1]
                headers[-1] = name, b"%b %b" % (value, _value(line))
            continue
        name, colon, value = line.partition(b":")
        name = name.rstrip(b" \t")
        is_kept = bool(colon and _NAME.fullmatch(name))
        if is_kept:
            headers.append((name, _value(value)))
    return headers


def _value(raw: bytes) -> bytes:
    return _CONTROLS.sub(b" ", raw).strip(b" \t")


def _codings(headers: Sequence[Header]) -> list[bytes]:
    """Return the transfer codings; they come before any length, and `identity` is none (RFC 9112 6.3)."""
    return [coding for coding in _members(headers, b"transfer-encoding") if coding != b"identity"]


def _lengths(headers: Sequence[Header]) -> Sequence[Header]:
    """Return the length of the body; equal ones are one, and without any it ends with the connection."""
    lengths = set(_members(headers, b"content-length"))
    if len(lengths) > 1 or not all(map(_DIGITS.fullmatch, lengths)):
        raise ValueError("the lengths of the body differ, or are no numbers")
    return [(b"content-length", length) for length in lengths]


def _members(headers: Sequence[Header], wanted: bytes) -> list[bytes]:
    values = [value for name, value in headers if name.lower() == wanted]
    members = (member.strip(b" \t").lower() for value in values for member in value.split(b","))
    return [member for member in members if member]
