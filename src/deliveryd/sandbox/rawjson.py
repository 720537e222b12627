"""Splits valid JSON into the texts of its parts, so that values keep their notation (`10.50`)."""

from __future__ import annotations

import json

_DECODER = json.JSONDecoder()
_BETWEEN = " \t\r\n,:"


def elements(text: str) -> list[str]:
    """Return the text of each element of an array, or of each name and value of an object by turns."""
    inner = text.strip()[1:-1]
    found: list[str] = []
    position = 0
    while position < len(inner):
        if inner[position] in _BETWEEN:
            position += 1
            continue
        _, end = _DECODER.raw_decode(inner, position)
        found.append(inner[position:end])
        position = end
    return found


def members(text: str) -> dict[str, str]:
    """Return the text of each value of an object by its name."""
    parts = elements(text)
    return dict(zip(map(json.loads, parts[::2]), parts[1::2], strict=True))
