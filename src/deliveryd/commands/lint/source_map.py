"""Where the values of a JSON text stand in it, by line and column."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import NamedTuple

JsonPath = tuple[str | int, ...]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL
)


class Spot(NamedTuple):
    """A place in a file; lines and columns begin with 1."""

    line: int
    column: int


class SourceMap:
    """The places of all values of a valid JSON text, by their paths; keys count as their values do."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._starts: dict[JsonPath, int] = {}
        self._scan()

    def spot(self, path: JsonPath, offset: int | None = None) -> Spot | None:
        """Return the place of a value, or of a character of a string; of what holds it if it isn't there."""
        while path and path not in self._starts:
            path, offset = path[:-1], None
        at = self._starts.get(path)
        if at is None:
            return None
        if offset is not None and self._text[at] == '"':
            at = self._character(at, offset)
        line = bisect_right(self._lines, at)
        return Spot(line, at - self._lines[line - 1] + 1)

    def _character(self, start: int, offset: int) -> int:
        at = start + 1
        for _ in range(offset):
            match = _ESCAPE.match(self._text, at)
            if match is None or self._text[at] == '"':
                break
            at = match.end()
        return at

    def _scan(self) -> None:
        path: list[str | int] = []
        expects_key: list[bool] = []  # for each open container: an object that awaits a key
        key_start: int | None = None
        for match in _TOKEN.finditer(self._text):
            symbol, start = match[0], match.start()
            if symbol in "}]":
                if expects_key:
                    expects_key.pop()
                    path.pop()
            elif symbol == ",":
                if path and isinstance(path[-1], int):
                    path[-1] += 1
                elif expects_key:
                    expects_key[-1] = True
            elif symbol == ":":
                continue
            elif expects_key and expects_key[-1] and symbol[0] == '"':
                path[-1], expects_key[-1], key_start = _unquoted(symbol), False, start
            else:
                # An object or an array is found at its key, which says more than a bracket does.
                is_container = symbol in "{["
                self._starts[tuple(path)] = key_start if is_container and key_start is not None else start
                key_start = None
                if is_container:
                    path.append("" if symbol == "{" else 0)
                    expects_key.append(symbol == "{")


def _unquoted(token: str) -> str:
    return str(json.loads(token, strict=False))
