"""Extracts one value from a response: by JSON Pointer (RFC 6901), or by a regular expression from text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache, partial

import orjson

Finder = Callable[[bytes], str | None]

LONGEST_VALUE = 255
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
SEARCHED_TEXT = 16 * 1024  # searched part of a plain text, so that expressions stay fast


def compile_finder(expression: str) -> Finder:
    """Compile a JSON Pointer, which begins with "/", or a regular expression. Raises ValueError.

    The finder returns text: for JSON, a string, a number, true or false as written; for an expression, its
    first group or the whole match. It returns None for a value that is missing, longer than 255 characters,
    or has control characters.
    """
    if expression.startswith("/"):
        return partial(_find_in_json, parse_pointer(expression))
    if not expression:
        raise ValueError('expected a JSON Pointer such as "/id", or a regular expression')
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise ValueError(f"neither a JSON Pointer nor a regular expression: {error}") from None
    return partial(_find_in_text, pattern)


@lru_cache(maxsize=256)
def parse_pointer(pointer: str) -> tuple[str, ...]:
    """Split a JSON Pointer into steps. Raises ValueError."""
    if not pointer.startswith("/"):
        raise ValueError('a JSON Pointer must start with "/"')
    if re.search(r"~(?![01])", pointer):
        raise ValueError('in a JSON Pointer, write "~0" for "~", and "~1" for "/" in a name')
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/"))


def follow(document: object, steps: tuple[str, ...]) -> object:
    """Return the value at the steps in a parsed document, or None."""
    for step in steps:
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and _INDEX.fullmatch(step) and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


def scalar_text(value: object) -> str | None:
    """Return a string, integer or boolean as text; None for anything else, and for unsuitable text."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int):
        text = str(value)
    else:
        return None
    return text if 0 < len(text) <= LONGEST_VALUE and text.isprintable() else None


def _find_in_json(steps: tuple[str, ...], body: bytes) -> str | None:
    try:
        found = follow(orjson.loads(body), steps)
        if not isinstance(found, str):  # only the slower parser keeps numbers verbatim
            found = follow(json.loads(body, parse_float=str), steps)
    except (ValueError, RecursionError):
        return None
    return scalar_text(found)


def _find_in_text(pattern: re.Pattern[str], body: bytes) -> str | None:
    match = pattern.search(body.decode("utf-8", "replace")[:SEARCHED_TEXT])
    return scalar_text(match[1 if pattern.groups else 0]) if match else None
