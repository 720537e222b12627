"""JSON in which every number keeps the text that it was written with: `10.50` stays `10.50`."""

from __future__ import annotations

import json
import re
from typing import Any


class NumberText(str):
    """A JSON number, as it was written."""

    __slots__ = ()


class NotANumber:
    """What `NaN` and `Infinity` become, which are no JSON: no model takes it."""

    def __init__(self, text: str) -> None:
        self.text = text


class TooDeep(ValueError):
    """A text is nested deeper than the parser goes."""


_decoder = json.JSONDecoder(parse_float=NumberText, parse_int=NumberText, parse_constant=NotANumber)
_integers = json.JSONDecoder(parse_float=NumberText, parse_constant=NotANumber)
# A string without an end is one mark too, or each quote in it would be tried, in time by the square.
_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)


def loads(text: str) -> Any:
    """Read a JSON text. Raises ValueError when it is none, and TooDeep before it is known whether it is."""
    try:
        return _decoder.decode(text)
    except RecursionError:
        raise TooDeep("nested too deeply") from None


def loads_integers(text: str) -> Any:
    """The same, with integers as such where that loses nothing: faster, since most numbers are integers.

    JSON writes an integer in one way only, save for `-0`. Raises what `loads` does.
    """
    if "-0" in text:
        return loads(text)
    try:
        return _integers.decode(text)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError):  # the latter: an integer of thousands of digits
        return loads(text)


def elements(text: str) -> list[str]:
    """The raw texts of the elements of a JSON array, however deep they are nested.

    What isn't JSON is cut somewhere; raises ValueError where it has no end.
    """
    found: list[str] = []
    depth = begin = 0
    for mark in _MARK.finditer(text):
        kind = mark[0][0]
        if kind in "[{":
            depth += 1
            begin = mark.end() if depth == 1 else begin
        elif kind in "]}":
            depth -= 1
        if (kind == "," and depth == 1) or depth == 0:
            found.append(text[begin : mark.start()].strip(" \t\r\n"))
            begin = mark.end()
        if depth == 0:
            return found if any(found) else []
    raise ValueError("the array has no end")
