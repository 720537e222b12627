"""Regular expressions of the configuration, searched in time that grows with the text and no faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from re2 import _Regexp

SEARCHED_TEXT = 4096
"""Characters of a text that are searched."""

LARGEST_PROGRAM = 1500
"""Instructions of RE2 that an expression may compile to: a search takes as long as these times the text."""


class Expression(NamedTuple):
    """A compiled expression, in RE2's syntax: no look-around, no references to groups.

    Line breaks at the end of a text aren't searched, so that `$` stands before them.
    """

    pattern: _Regexp

    def found(self, text: str) -> str | None:
        """Search a text; return the first group, or the whole match if there is no group. None: no match."""
        match = self.pattern.search(_searched(text))
        return None if match is None else match[1 if self.pattern.groups else 0]

    def matches(self, text: str) -> bool:
        """Whether a part of a text matches."""
        return self.pattern.search(_searched(text)) is not None

    def matches_all(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self.pattern.fullmatch(_searched(text)) is not None


def _searched(text: str) -> str:
    """The part that is searched. RE2 searches UTF-8, which has no half of a surrogate pair."""
    return text[:SEARCHED_TEXT].rstrip("\r\n").encode(errors="replace").decode()


def compile_expression(text: str) -> Expression:
    """Compile an expression.

    Raises ValueError: it isn't one, RE2 can't search it in linear time, or it would take too long.
    """
    import re2  # noqa: PLC0415  # needed only if the configuration has an expression

    options = re2.Options()
    options.log_errors = False  # it would write to standard error
    try:
        pattern = re2.compile(text, options)
        size = max(pattern.programsize, pattern.reverseprogramsize)
    except re2.error as error:
        raise ValueError(f"not a regular expression in RE2's syntax: {_reason(error)}") from None
    except UnicodeEncodeError:
        raise ValueError("not a regular expression: it holds half of a surrogate pair") from None
    if size > LARGEST_PROGRAM:
        raise ValueError(
            f"the regular expression is too large: {size} instructions, of at most {LARGEST_PROGRAM};"
            " repeats such as {1,500} count that often"
        )
    return Expression(pattern)


def _reason(error: Exception) -> str:
    reason = error.args[0]
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
