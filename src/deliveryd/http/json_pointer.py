"""JSON Pointers (RFC 6901), with "*" for every element of an array."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache

Steps = tuple[str, ...]

LONGEST_VALUE = 255
EVERY = "*"
"""The step that stands for every element of an array."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


@lru_cache(maxsize=256)
def _index(step: str) -> int:
    """Return the place that a step names in an array; one beyond every array if it isn't a number."""
    return int(step) if _INDEX.fullmatch(step) else sys.maxsize


@lru_cache(maxsize=256)
def parse_pointer(pointer: str) -> Steps:
    """Split a JSON Pointer into steps. Raises ValueError."""
    if not pointer.startswith("/"):
        raise ValueError('a JSON Pointer must start with "/"')
    if re.search(r"~(?![01])", pointer):
        raise ValueError('in a JSON Pointer, write "~0" for "~", and "~1" for "/" in a name')
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/"))


def follow(document: object, steps: Steps) -> object:
    """Return the value at the steps in a parsed document, or None."""
    for step in steps:
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and (index := _index(step)) < len(document):
            document = document[index]
        else:
            return None
    return document


def values_at(document: object, steps: Steps) -> Sequence[object]:
    """Return the values at the steps in a parsed document; a missing value and null are left out.

    A "*" stands for every element of an array, in the array's order; in an object it is a name.
    """
    if EVERY not in steps:
        found = follow(document, steps)
        return () if found is None else (found,)
    position = steps.index(EVERY)
    around, rest = follow(document, steps[:position]), steps[position + 1 :]
    if isinstance(around, list):
        return [value for element in around for value in values_at(element, rest)]
    if isinstance(around, dict):
        return values_at(around.get(EVERY), rest)
    return ()


def wrong_shapes(document: object, steps: Steps) -> Iterator[object]:
    """Yield what stands on the way to the steps' values and has another shape than the steps need.

    A name needs an object, "*" an array; a number needs an array, or an object with that name. What is
    missing, or null, has no shape.
    """
    for position, step in enumerate(steps):
        if document is None:
            return
        if step == EVERY and isinstance(document, list):
            if rest := steps[position + 1 :]:
                for element in document:
                    yield from wrong_shapes(element, rest)
            return
        if isinstance(document, list) and _INDEX.fullmatch(step):
            document = document[int(step)] if int(step) < len(document) else None
        elif isinstance(document, dict) and (step in document or not (step == EVERY or step.isdecimal())):
            document = document.get(step)
        else:
            yield document
            return


def value_text(value: object) -> str | None:
    """Return a string, integer or boolean as text; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else None


def scalar_text(value: object) -> str | None:
    """Return `value_text`, or None if it is empty, longer than 255 characters or has control characters."""
    text = value if isinstance(value, str) else value_text(value)
    return text if text and len(text) <= LONGEST_VALUE and text.isprintable() else None
