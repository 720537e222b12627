"""Cuts SQL into its tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""\s+ | --[^\n]*
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"[^"]+")
    | (?P<param>%s | %\(\w+\)s)
    | (?P<number>\d+(?:\.\d+)?(?:e\d+)?)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<symbol><> | <= | >= | != | \|\| | :: | << | >> | [-+*/<>=(),.;\[\]])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """A piece of the text. `kind`: string, quoted, param, number, word, symbol, or end."""

    kind: str
    text: str


def tokens(text: str) -> list[Token]:
    """Return the tokens of a statement; words are in small letters. Raises SyntaxError."""
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SyntaxError(f"the model can't read {text[at : at + 40]!r} in {text}")
        if match.lastgroup is not None:
            piece = match.group()
            found.append(Token(match.lastgroup, piece.lower() if match.lastgroup == "word" else piece))
        at = match.end()
    return [*found, Token("end", "")]
