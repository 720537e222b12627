"""JSON in which every number keeps the text that it was written with: `10.50` stays `10.50`."""

from __future__ import annotations

import json
from typing import Any


class NumberText(str):
    """A JSON number, as it was written."""

    __slots__ = ()


class NotANumber:
    """What `NaN` and `Infinity` become, which are no JSON: no model takes it."""

    def __init__(self, text: str) -> None:
        self.text = text


_decoder = json.JSONDecoder(parse_float=NumberText, parse_int=NumberText, parse_constant=NotANumber)


def loads(text: str) -> Any:
    """Read a JSON text. Raises ValueError when it is none, or is nested too deeply."""
    try:
        return _decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def elements(text: str) -> list[str]:
    """The raw texts of the elements of a JSON array that `loads` has read."""
    found: list[str] = []
    position = text.index("[") + 1
    while True:
        while text[position] in " \t\r\n,":
            position += 1
        if text[position] == "]":
            return found
        _, end = _decoder.raw_decode(text, position)
        found.append(text[position:end])
        position = end
