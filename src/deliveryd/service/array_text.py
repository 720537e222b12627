"""Splits the bytes of a JSON array into its elements, up to where it breaks off.

Nothing is decoded or parsed, so an unreadable element doesn't affect others, and a large array takes no more
memory than its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

MOST_JSON_MEMBERS = 1000
"""Most members of an object searched for a name."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

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
_MARK = re.compile(_STRING[:-1] + rb'(?:"|\\?\Z)|(?P<open>[\[{]++)|(?P<close>[\]}]++)', re.DOTALL)
_ANY_STRING = re.compile(_STRING, re.DOTALL)


@cache
def _closed() -> re.Pattern[bytes]:
    """Return the expression for a string or nested brackets: few runs need it, and it is slow to compile."""
    return re.compile(_STRING + b"|" + _brackets(_NESTING), re.DOTALL)


class NoArray(ValueError):
    """From some position on, a text isn't a JSON array; the message says why, without quoting it."""


def spans(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each element begins and ends. Raises NoArray after the last complete one.

    Elements aren't checked to be JSON; only their ends are found.
    """
    at = _skip(text, len(BYTE_ORDER_MARK) if text.startswith(BYTE_ORDER_MARK) else 0)
    if text[at : at + 1] != b"[":
        raise NoArray("is not a JSON array")
    at = _skip(text, at + 1)
    if text[at : at + 1] == b"]":
        at += 1
    else:
        mark = b","
        while mark == b",":
            end = _end_of_value(text, at)
            if end == len(text) and text[end - 1] not in b'"]}':
                raise NoArray("has no end")  # the next byte might have belonged to this number or word
            yield at, end
            at = _skip(text, end)
            mark = text[at : at + 1]
            if mark not in (b",", b"]"):
                raise NoArray("has no end" if not mark else f"isn't JSON at byte {at}")
            at = _skip(text, at + 1) if mark == b"," else at + 1
    if _skip(text, at) != len(text):
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
            begin = _skip(text, at + 1)
            colon = _skip(text, end := _end_of_value(text, begin))
            if text[colon : colon + 1] != b":":
                break
            value = _skip(text, colon + 1)
            at = _end_of_value(text, value)
            if text[begin:end] == b'"' + name + b'"':
                found = text[value:at]
            at = _skip(text, at)
            if text[at : at + 1] != b",":
                break
    except NoArray:
        pass
    return found


def without_texts(text: bytes) -> bytes:
    """Return the text with all strings emptied: if that is JSON, the end of the value is certain."""
    return _ANY_STRING.sub(b'""', text)


def _skip(text: bytes, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _end_of_value(text: bytes, at: int) -> int:
    found = _closed().match(text, at) or _BARE.match(text, at)
    return found.end() if found else _end_of_deep_value(text, at)


def _end_of_deep_value(text: bytes, at: int) -> int:
    if at == len(text) or text[at] in b'"':
        raise NoArray("has no end")
    if text[at] not in b"[{":
        raise NoArray(f"isn't JSON at byte {at}")
    depth = 0
    for mark in _MARK.finditer(text, at):
        if mark["open"]:
            depth += len(mark["open"])
        elif mark["close"]:
            if len(mark["close"]) >= depth:
                return mark.start() + depth
            depth -= len(mark["close"])
    raise NoArray("has no end")
