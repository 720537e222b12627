"""The one rule for what people and programs leave around and inside what they type, and can't be seen.

White space is what Unicode calls so. Invisible are its format and control characters, its default ignorable
ones (blanks without width, byte order marks, variation selectors, fillers), and the empty Braille pattern.
"""

from __future__ import annotations

import unicodedata

_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff"
"""Invisible characters of other categories than Cf and Cc; `-` stands for a range."""

_JOINERS = frozenset("\u200c\u200d\u034f")
"""Characters that shape the one before them, beside variation selectors and tags."""


def _spread(ranges: str) -> frozenset[str]:
    chars = set(ranges) - {"-"}
    for place, char in enumerate(ranges):
        if char == "-":
            chars.update(map(chr, range(ord(ranges[place - 1]), ord(ranges[place + 1]))))
    return frozenset(chars)


_INVISIBLE = _spread(_FILLERS)


def is_invisible(char: str) -> bool:
    """Whether a character shows nothing, not even a gap; line breaks and tabs are white space instead."""
    return char in _INVISIBLE or (unicodedata.category(char) in ("Cf", "Cc") and not char.isspace())


def cleaned(text: str) -> str:
    """Return the text without white space and invisible characters around it.

    What shapes the character before it stays, as the last of an emoji or of a syllable; ASCII isn't shaped.
    """
    if text.isascii() and text.isprintable():
        return text.strip(" ")
    start, end = 0, len(text)
    while start < end and _is_blank(text[start]):
        start += 1
    while end > start and _is_blank(text[end - 1]):
        end -= 1
    while end > start and not text[end - 1].isascii() and text[end : end + 1] and _shapes(text[end]):
        end += 1
    return text[start:end]


def _is_blank(char: str) -> bool:
    return char.isspace() or is_invisible(char)


def _shapes(char: str) -> bool:
    return char in _JOINERS or "\ufe00" <= char <= "\ufe0f" or char >= "\U000e0000"
