"""The one grammar of placeholders, and templates that are split by it once and filled often (design 5).

    text        = *( literal / placeholder )
    placeholder = "{" key "}"                   ; any key of the message's variables, exactly as written
                / "{" written "}"
    written     = *( any character but "{" and "}" )

What is written is read as a name once invisible characters (see `deliveryd.cleaning`) are taken out, and then
the white space around it. A name that is a key of the variables is a placeholder in this message.
Names of the following form are placeholders in every message, and must have a value:

    name        = word *( white-space word )    ; in the body of an HTML e-mail: a single word
    word        = 1*( letter / digit / mark / "_" / "." / "-" )

Every other brace is literal. The leftmost placeholder counts, and the longer of two that begin together.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from deliveryd.cleaning import is_invisible

# What has no brace inside can be cut out before the variables are known; what turns out to be no placeholder
# is put back as it was. Only keys that hold braces themselves make a grammar of their own. The possessive
# repeat keeps hostile text from being scanned twice.
_BRACELESS = r"\{[^{}]*+\}"
_GRAMMAR = re.compile(_BRACELESS)
_WHITE_SPACE = re.compile(r"\s")

LONGEST_TEXT = 2 << 20
"""Characters of a filled text at most: a long value in many places would make any number of them."""


class TooLong(Exception):
    """The filled text would be longer than any channel accepts."""


Naming = Callable[[str], bool]
"""Whether a name must have a value, whatever the variables are: `is_word` or `is_words`."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text split into pieces; `slots` has which pieces are placeholders, and for what.

    `names` are the placeholders that must have a value, each once, by first appearance (interface 2.7).
    `spellings` are those that are written otherwise than their names; a variable may have one as its key.
    `percent_format` is the same text for Python's `%`, which fills it several times as fast; None where a
    slot may keep its text because it has no value.
    """

    pieces: tuple[str, ...]
    slots: tuple[tuple[int, str], ...]
    names: tuple[str, ...]
    spellings: frozenset[str]
    naming: Naming = field(compare=False, repr=False)
    percent_format: str | None = field(compare=False, repr=False)

    @classmethod
    def compile(cls, text: str, naming: Naming) -> Template:
        """Split any text, in time linear in its length. Never raises."""
        return _split(text, _GRAMMAR, frozenset(), naming)

    def with_keys(self, keys: Collection[str]) -> Template:
        """The same text, read with these keys as names exactly as they are, whatever braces they hold."""
        longest_first = sorted(braced_keys(keys), key=len, reverse=True)
        alternatives = [re.escape("{" + key + "}") for key in longest_first]
        grammar = re.compile("|".join([*alternatives, _BRACELESS]))
        return _split("".join(self.pieces), grammar, frozenset(keys), self.naming)

    def fill(self, values: Mapping[str, str]) -> str:
        """Insert the values, unchanged and once; a placeholder without a value stays as written.

        Raises TooLong before any such text is made.
        """
        if self.percent_format is not None:
            longest = len(self.percent_format) + len(self.slots) * len("".join(values.values()))
            if longest <= LONGEST_TEXT:
                try:
                    return self.percent_format % values
                except KeyError:  # one without a value
                    pass
        return self._fill_some(values)

    def _fill_some(self, values: Mapping[str, str]) -> str:
        pieces = list(self.pieces)
        for index, name in self.slots:
            value = values.get(name)
            if value is not None:
                pieces[index] = value
        if sum(map(len, pieces)) > LONGEST_TEXT:
            raise TooLong
        return "".join(pieces)


def braced_keys(keys: Collection[str]) -> tuple[str, ...]:
    """The keys that hold braces themselves, which only `Template.with_keys` can see."""
    together = "".join(keys)
    if "{" not in together and "}" not in together:
        return ()
    return tuple(key for key in keys if "{" in key or "}" in key)


def is_word(name: str) -> bool:
    """Whether a name is one word: what must have a value in HTML, where braces are CSS as well."""
    return name != "" and all(map(_may_stand_in_a_word, name))


def is_words(name: str) -> bool:
    """Whether a name is a word, or several separated by single blanks."""
    return all(map(is_word, _WHITE_SPACE.split(name)))


def _split(text: str, grammar: re.Pattern[str], keys: Collection[str], naming: Naming) -> Template:
    pieces: list[str] = []
    slots: list[tuple[int, str]] = []
    spellings: set[str] = set()
    end = 0
    for match in grammar.finditer(text):
        pieces += (text[end : match.start()], match[0])
        written = match[0][1:-1]
        name = written if written in keys else _cleaned(written)
        if name != written:
            spellings.add(written)
        slots.append((len(pieces) - 1, name))
        end = match.end()
    pieces.append(text[end:])
    names = tuple(dict.fromkeys(name for _, name in slots))
    must_have_values = tuple(filter(naming, names))
    percent_format = _percent_format(pieces, slots) if len(must_have_values) == len(names) else None
    return Template(
        tuple(pieces), tuple(slots), must_have_values, frozenset(spellings), naming, percent_format
    )


def _percent_format(pieces: Sequence[str], slots: Sequence[tuple[int, str]]) -> str:
    texts = [piece.replace("%", "%%") for piece in pieces]
    for index, name in slots:
        texts[index] = f"%({name})s"
    return "".join(texts)


def _cleaned(written: str) -> str:
    """Return the name without invisible characters, which editors may leave."""
    if not written.isascii():
        written = "".join(char for char in written if not is_invisible(char))
    return written.strip()


def _may_stand_in_a_word(char: str) -> bool:
    # Many scripts write vowels and accents as marks of their own, which isalnum() doesn't count as letters.
    return char.isalnum() or char in "_.-" or unicodedata.category(char).startswith("M")
