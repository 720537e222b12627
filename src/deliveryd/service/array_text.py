"""Splits the bytes of a JSON array into its elements, up to where it breaks off.

Nothing is decoded or parsed, so an unreadable element doesn't affect others, and a large array takes no more
memory than its bytes. No expression is applied to more than a window of it at a time: that would hold the
interpreter, also in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

MOST_JSON_MEMBERS = 1000
"""Most members of an object searched for a name."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_WINDOW = 256 << 10
"""Bytes that an expression is applied to at a time."""

_NESTING = 4
"""Levels of brackets that one expression matches; messages have two."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[^"\[\]{}]*+(?:' + _STRING + rb'[^"\[\]{}]*+)*+'


def _brackets(levels: int) -> bytes:
    """Return an expression for brackets nested up to `levels`, regardless of their kinds."""
    inner = _FLAT if levels == 1 else _FLAT + b"(?:" + _brackets(levels - 1) + _FLAT + b")*+"
    return rb"[\[{]" + inner + rb"[\]}]"


_BLANK = re.compile(rb"[ \t\r\n]*+")
_BARE = re.compile(rb'[^"\[\]{},: \t\r\n]++')
# An unterminated string is one mark too; otherwise each quote in it would be tried, in quadratic time.
_MARK = re.compile(_STRING[:-1] + rb'(?:"|(?P<cut>\\?\Z))|(?P<open>[\[{]++)|(?P<close>[\]}]++)', re.DOTALL)
_IN_STRING = re.compile(_STRING[1:-1], re.DOTALL)
_ANY_STRING = re.compile(_STRING, re.DOTALL)


@cache
def _closed() -> re.Pattern[bytes]:
    """Return the expression for a string or nested brackets: few runs need it, and it is slow to compile."""
    return re.compile(_STRING + b"|" + _brackets(_NESTING), re.DOTALL)


class NoArray(ValueError):
    """From some position on, a text isn't a JSON array; the message has the reason, without quoting it."""


def spans(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each element begins and ends. Raises NoArray after the last complete one.

    Elements aren't checked to be JSON; only their ends are found.
    """
    at = skip_blanks(text, len(BYTE_ORDER_MARK) if text.startswith(BYTE_ORDER_MARK) else 0)
    if text[at : at + 1] != b"[":
        raise NoArray("is not a JSON array")
    at = skip_blanks(text, at + 1)
    if text[at : at + 1] == b"]":
        at += 1
    else:
        mark = b","
        while mark == b",":
            end = _end_of_value(text, at)
            if end == len(text) and text[end - 1] not in b'"]}':
                raise NoArray("has no end")  # the next byte might have belonged to this number or word
            yield at, end
            at = skip_blanks(text, end)
            mark = text[at : at + 1]
            if mark not in (b",", b"]"):
                raise NoArray("has no end" if not mark else f"isn't JSON at byte {at}")
            at = skip_blanks(text, at + 1) if mark == b"," else at + 1
    if skip_blanks(text, at) != len(text):
        raise NoArray(f"has data after its end at byte {at}")


def member(text: bytes, at: int, name: bytes) -> bytes | None:
    """Return the raw text of a member of the object at `at`, or None.

    The last of repeated members counts. Only the first members are searched, and only up to a syntax error.
    """
    found = None
    if text[at : at + 1] != b"{":
        return None
    try:
        for _ in range(MOST_JSON_MEMBERS):
            begin = skip_blanks(text, at + 1)
            colon = skip_blanks(text, end := _end_of_value(text, begin))
            if text[colon : colon + 1] != b":":
                break
            value = skip_blanks(text, colon + 1)
            at = _end_of_value(text, value)
            if text[begin:end] == b'"' + name + b'"':
                found = text[value:at]
            at = skip_blanks(text, at)
            if text[at : at + 1] != b",":
                break
    except NoArray:
        pass
    return found


def without_texts(text: bytes) -> bytes:
    """Return the text with all strings emptied: if that is JSON, the end of the value is certain."""
    return _ANY_STRING.sub(b'""', text)


def skip_blanks(text: bytes, at: int) -> int:
    """Return where the next byte is that is no white space."""
    while True:
        begin = at
        at = _matched(_BLANK, text, begin)
        if at < begin + _WINDOW:
            return at


def _matched(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    """Return the end of a match within a window, or `at`."""
    found = pattern.match(text, at, at + _WINDOW)
    return found.end() if found else at


def _end_of_value(text: bytes, at: int) -> int:
    begin = at
    if (end := _matched(_closed(), text, begin)) > begin:
        return end
    while (end := _matched(_BARE, text, at)) > at:
        at = end
    return at if at > begin else _end_of_long_value(text, at)


def _end_of_long_value(text: bytes, at: int) -> int:
    if at == len(text):
        raise NoArray("has no end")
    if text[at] in b'"':
        return _end_of_string(text, at + 1)
    if text[at] not in b"[{":
        raise NoArray(f"isn't JSON at byte {at}")
    depth = 0
    while at < len(text):
        end = at + _WINDOW
        for mark in _MARK.finditer(text, at, end):
            if mark["open"]:
                depth += len(mark["open"])
            elif mark["close"]:
                if len(mark["close"]) >= depth:
                    return mark.start() + depth
                depth -= len(mark["close"])
            elif (cut := mark["cut"]) is not None:
                end = _end_of_string(text, mark.end() - len(cut))
        at = end
    raise NoArray("has no end")


def _end_of_string(text: bytes, at: int) -> int:
    """Return the end of a string of which the byte at `at` is one."""
    while at < len(text):
        at = _matched(_IN_STRING, text, at)
        mark = text[at : at + 1]
        if mark == b'"':
            return at + 1
        if mark == b"\\":  # the window's last byte
            at += 2
    raise NoArray("has no end")
