"""Splits JSON text into the texts of its parts, so that values keep their notation (`10.50`)."""

from __future__ import annotations

import json

from deliveryd.sandbox.answers import UnreadableError

_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"


def elements(text: str) -> list[str]:
    """The text of each element of a JSON array. UnreadableError when `text` is not one."""
    position = _expect(text, 0, "[")
    found: list[str] = []
    if text[_skip(text, position) :][:1] == "]":
        _end(text, _skip(text, position) + 1)
        return found
    while True:
        start = _skip(text, position)
        end = _value_end(text, start)
        found.append(text[start:end])
        position = _skip(text, end)
        if text[position : position + 1] != ",":
            break
        position += 1
    _end(text, _expect(text, position, "]"))
    return found


def members(text: str) -> dict[str, str]:
    """The text of each value of a JSON object by its name. UnreadableError when `text` is not an object."""
    position = _expect(text, 0, "{")
    found: dict[str, str] = {}
    if text[_skip(text, position) :][:1] == "}":
        _end(text, _skip(text, position) + 1)
        return found
    while True:
        start = _skip(text, position)
        end = _value_end(text, start)
        name = json.loads(text[start:end])
        if not isinstance(name, str):
            raise UnreadableError(f"a name was expected at character {start}")
        start = _skip(text, _expect(text, end, ":"))
        end = _value_end(text, start)
        found[name] = text[start:end]
        position = _skip(text, end)
        if text[position : position + 1] != ",":
            break
        position += 1
    _end(text, _expect(text, position, "}"))
    return found


def _skip(text: str, position: int) -> int:
    while text[position : position + 1] and text[position] in _BLANK:
        position += 1
    return position


def _expect(text: str, position: int, mark: str) -> int:
    position = _skip(text, position)
    if text[position : position + 1] != mark:
        raise UnreadableError(f"{mark!r} was expected at character {position}")
    return position + 1


def _value_end(text: str, start: int) -> int:
    end: int = _DECODER.raw_decode(text, start)[1]
    return end


def _end(text: str, position: int) -> None:
    if _skip(text, position) != len(text):
        raise UnreadableError(f"text after the end at character {position}")
