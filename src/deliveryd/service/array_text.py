"""The elements of a JSON array, cut out of its bytes one after the other, up to where it breaks off.

Nothing is decoded or parsed, so that one element that can't be read spoils no other, and a large array takes
no more memory than its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_MARKS = 1_000_000
"""Brackets and texts that are looked at, one by one, to find the end of an element that is nested deeply."""

MOST_JSON_MEMBERS = 1000
"""Members of an object that are looked at for a name."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_NESTING = 4
"""Levels of brackets that one expression matches at once: messages have two."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[^"\[\]{}]*+(?:' + _STRING + rb'[^"\[\]{}]*+)*+'


def _brackets(levels: int) -> bytes:
    """An expression for a pair of brackets with at most so many levels, the kinds of brackets aside."""
    inner = _FLAT if levels == 1 else _FLAT + b"(?:" + _brackets(levels - 1) + _FLAT + b")*+"
    return rb"[\[{]" + inner + rb"[\]}]"


_BLANK = re.compile(rb"[ \t\r\n]*+")
_CLOSED = re.compile(_STRING + b"|" + _brackets(_NESTING), re.DOTALL)
_BARE = re.compile(rb'[^"\[\]{},: \t\r\n]++')
# A string without an end is one mark too, or each quote in it would be tried, in time by the square.
_MARK = re.compile(_STRING[:-1] + rb'(?:"|\\?\Z)|(?P<open>[\[{]++)|(?P<close>[\]}]++)', re.DOTALL)
_ANY_STRING = re.compile(_STRING, re.DOTALL)


class NoArray(ValueError):
    """From some place on, a text isn't a JSON array; the message says why, without quoting it."""


def spans(text: bytes) -> Iterator[tuple[int, int]]:
    """Where each element begins and ends. Raises NoArray behind the last one that is whole.

    That the elements themselves are JSON isn't looked at, only where they end.
    """
    at = _skip(text, len(BYTE_ORDER_MARK) if text.startswith(BYTE_ORDER_MARK) else 0)
    if text[at : at + 1] != b"[":
        raise NoArray("isn't a JSON array")
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
        raise NoArray(f"has something behind its end at byte {at}")


def member(text: bytes, at: int, name: bytes) -> bytes | None:
    """The raw text of a member of the object that begins there; None when it isn't found.

    Of a repeated one it is the last. Only the first members are looked at, and only up to where the object
    can't be taken apart.
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
    """The same with every string empty: where that is JSON, it is sure where the value ends."""
    return _ANY_STRING.sub(b'""', text)


def _skip(text: bytes, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _end_of_value(text: bytes, at: int) -> int:
    found = _CLOSED.match(text, at) or _BARE.match(text, at)
    return found.end() if found else _end_of_deep_value(text, at)


def _end_of_deep_value(text: bytes, at: int) -> int:
    if at == len(text) or text[at] in b'"':
        raise NoArray("has no end")
    if text[at] not in b"[{":
        raise NoArray(f"isn't JSON at byte {at}")
    depth = 0
    for count, mark in enumerate(_MARK.finditer(text, at)):
        if count == MOST_MARKS:
            raise NoArray(f"has an element of more than {MOST_MARKS} brackets and texts")
        if mark["open"]:
            depth += len(mark["open"])
        elif mark["close"]:
            if len(mark["close"]) >= depth:
                return mark.start() + depth
            depth -= len(mark["close"])
    raise NoArray("has no end")
