"""The one grammar of placeholders, and templates that are split by it once and filled often (design 5).

    text        = *( literal / placeholder )
    placeholder = "{" name "}"
    name        = 1*( letter / digit / "_" / "." / "-" )    ; must have a value
                / any key of the message's variables        ; a placeholder in this message only

Every other brace is literal. The leftmost placeholder counts, and the longer of two that begin together.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

# What has no brace inside can be cut out before the variables are known; what turns out to be no placeholder
# is put back as it was. Only keys that hold braces themselves make a grammar of their own. The possessive
# repeat keeps hostile text from being scanned twice.
_BRACELESS = r"\{[^{}]*+\}"
_GRAMMAR = re.compile(_BRACELESS)


LONGEST_TEXT = 2 << 20
"""Characters of a filled text at most: a long value in many places would make any number of them."""


class TooLong(Exception):
    """The filled text would be longer than any channel takes."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text split into pieces; `holes` says which pieces are placeholders, and for what.

    `names` are the placeholders that must have a value, each once, by first appearance (interface 2.7).
    `mould` is the same text for Python's `%`, which fills it several times as fast; None where a hole that
    has no value may stay as it is.
    """

    pieces: tuple[str, ...]
    holes: tuple[tuple[int, str], ...]
    names: tuple[str, ...]
    mould: str | None = field(compare=False, repr=False)

    @classmethod
    def compile(cls, text: str) -> Template:
        """Split any text, in time linear in its length. Never raises."""
        return _split(text, _GRAMMAR)

    def with_keys(self, keys: Collection[str]) -> Template:
        """The same text, read with these keys as names too, whatever braces they hold."""
        longest_first = sorted(keys, key=len, reverse=True)
        alternatives = [re.escape("{" + key + "}") for key in longest_first]
        return _split("".join(self.pieces), re.compile("|".join([*alternatives, _BRACELESS])))

    def fill(self, values: Mapping[str, str]) -> str:
        """Put the values in, as they are and once; a placeholder without a value stays as written.

        Raises TooLong before any such text is made.
        """
        if self.mould is not None:
            longest = len(self.mould) + len(self.holes) * len("".join(values.values()))
            if longest <= LONGEST_TEXT:
                try:
                    return self.mould % values
                except KeyError:  # one without a value
                    pass
        return self._fill_some(values)

    def _fill_some(self, values: Mapping[str, str]) -> str:
        pieces = list(self.pieces)
        for index, name in self.holes:
            value = values.get(name)
            if value is not None:
                pieces[index] = value
        if sum(map(len, pieces)) > LONGEST_TEXT:
            raise TooLong
        return "".join(pieces)


def braced_keys(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that hold braces themselves, which only `Template.with_keys` can see."""
    together = "".join(variables)
    if "{" not in together and "}" not in together:
        return ()
    return tuple(key for key in variables if "{" in key or "}" in key)


def _split(text: str, grammar: re.Pattern[str]) -> Template:
    pieces: list[str] = []
    holes: list[tuple[int, str]] = []
    end = 0
    for match in grammar.finditer(text):
        placeholder = match[0]
        pieces += (text[end : match.start()], placeholder)
        holes.append((len(pieces) - 1, placeholder[1:-1]))
        end = match.end()
    pieces.append(text[end:])
    return _template(pieces, holes)


def _template(pieces: Sequence[str], holes: Sequence[tuple[int, str]]) -> Template:
    names = dict.fromkeys(name for _, name in holes)
    must_have_values = tuple(filter(_is_name, names))
    mould = _mould(pieces, holes) if len(must_have_values) == len(names) else None
    return Template(tuple(pieces), tuple(holes), must_have_values, mould)


def _mould(pieces: Sequence[str], holes: Sequence[tuple[int, str]]) -> str:
    texts = [piece.replace("%", "%%") for piece in pieces]
    for index, name in holes:
        texts[index] = f"%({name})s"
    return "".join(texts)


def _is_name(text: str) -> bool:
    return text != "" and all(map(_may_stand_in_a_name, text))


def _may_stand_in_a_name(char: str) -> bool:
    # Many scripts write vowels and accents as marks of their own, which isalnum() doesn't count as letters.
    return char.isalnum() or char in "_.-" or unicodedata.category(char).startswith("M")
