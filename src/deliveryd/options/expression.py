"""Finds regular expressions that can take exponential time, by their structure; runs none of them."""

from __future__ import annotations

import re
from re import _compiler, _parser  # type: ignore[attr-defined]  # the only way to the structure of one
from typing import Any, NamedTuple

_MANY = _parser.MAXREPEAT
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
_SAMPLES = [*map(chr, range(128)), "é", "Ω", "中", "\u2028"]
"""Characters that stand for all: two parts overlap if both match one of these."""


class _Part(NamedTuple):
    """What a part can begin with, as indexes of samples, and whether it can be empty."""

    first: frozenset[int]
    is_empty: bool


_NOTHING = _Part(frozenset(), is_empty=True)
_ANYTHING = _Part(frozenset(range(len(_SAMPLES))), is_empty=False)


def takes_exponential_time(expression: str) -> bool:
    """Whether an unbounded repeat contains another one that can match the same text in many ways.

    That is so if what follows the inner repeat, or the next round of the outer one, can begin with what the
    inner one repeats: `(a+)+`, `(\\d+x?)*`, but not `(\\d+,)*`. An invalid expression doesn't.
    """
    try:
        tree = _parser.parse(expression)
        return _is_ambiguous(list(tree), tree.state.flags)
    except (re.error, RecursionError, OverflowError):
        return False


def _is_ambiguous(items: list[Any], flags: int) -> bool:
    """Look for outer repeats."""
    for name, argument in items:
        if str(name) in _REPEATS and argument[1] == _MANY:
            body = list(argument[2])
            if _repeats_what_follows(body, _part_of(body, flags), flags):
                return True
        if any(_is_ambiguous(list(below), flags) for below in _below(name, argument)):
            return True
    return False


def _repeats_what_follows(items: list[Any], follow: _Part, flags: int) -> bool:
    """Whether an unbounded repeat in these items may go on with what may follow it."""
    for index, (name, argument) in enumerate(items):
        after = _followed(_part_of(items[index + 1 :], flags), follow)
        if str(name) in _REPEATS and argument[1] == _MANY:
            if _part_of(list(argument[2]), flags).first & after.first:
                return True
        elif any(_repeats_what_follows(list(below), after, flags) for below in _below(name, argument)):
            return True
    return False


def _followed(part: _Part, follow: _Part) -> _Part:
    if not part.is_empty:
        return part
    return _Part(part.first | follow.first, follow.is_empty)


def _below(name: object, argument: Any) -> list[Any]:
    """Return the sequences inside an item. Atomic groups and possessive repeats never give back."""
    match str(name):
        case "MAX_REPEAT" | "MIN_REPEAT":
            return [argument[2]]
        case "SUBPATTERN":
            return [argument[3]]
        case "BRANCH":
            return list(argument[1])
        case _:
            return []


def _part_of(items: list[Any], flags: int) -> _Part:
    """Return what a sequence can begin with."""
    first: frozenset[int] = frozenset()
    for name, argument in items:
        part = _item(str(name), argument, flags, (name, argument))
        first |= part.first
        if not part.is_empty:
            return _Part(first, is_empty=False)
    return _Part(first, is_empty=True)


def _item(name: str, argument: Any, flags: int, item: Any) -> _Part:
    match name:
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            part = _part_of(list(argument[2]), flags)
            return part._replace(is_empty=part.is_empty or argument[0] == 0)
        case "SUBPATTERN":
            return _part_of(list(argument[3]), flags)
        case "ATOMIC_GROUP":
            return _part_of(list(argument), flags)
        case "BRANCH":
            parts = [_part_of(list(below), flags) for below in argument[1]]
            return _Part(
                frozenset().union(*(part.first for part in parts)), any(part.is_empty for part in parts)
            )
        case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
            return _Part(_matching(item, flags), is_empty=False)
        case "AT" | "ASSERT" | "ASSERT_NOT":
            return _NOTHING
        case _:  # a reference to a group, or a condition
            return _ANYTHING._replace(is_empty=True)


def _matching(item: Any, flags: int) -> frozenset[int]:
    """Return which samples an item of one character matches, by compiling it alone."""
    state = _parser.State()
    state.flags = flags
    state.str = ""
    pattern = _compiler.compile(_parser.SubPattern(state, [item]), flags)
    return frozenset(index for index, sample in enumerate(_SAMPLES) if pattern.fullmatch(sample))
