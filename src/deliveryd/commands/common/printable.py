"""Escapes text from outside, so that a terminal displays it and obeys nothing in it."""

from __future__ import annotations

import re

# Control characters (C0, DEL, C1), marks and overrides of direction, separators of lines, lone surrogates.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(text: str) -> str:
    r"""Return one line of text, with control characters and line breaks escaped, such as \x1b."""
    return text if text.isprintable() else _STEERING.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
