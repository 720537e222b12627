"""Fields of a customer that hold a list, such as their devices: it is kept as JSON text."""

from __future__ import annotations

import json

from deliveryd.cleaning import cleaned

_TEXTS = frozenset({"name", "language"})
"""Fields that are shown or read as they are, and so can't be a list."""


def field_text(name: str, value: object) -> str:
    """The text of a customer's field that is a list or an object where the customers are kept.

    Raises TypeError if it can't be one: it is the name or the language, or holds what JSON doesn't have.
    """
    if name in _TEXTS or not isinstance(value, list | dict):
        raise TypeError("neither a string nor a number")
    return compact_json(value)


def compact_json(value: list[object] | dict[str, object]) -> str:
    """A list or an object as compact JSON; empty members of a list are left out, and an empty one is blank.

    Raises TypeError if it holds what JSON doesn't have.
    """
    if isinstance(value, list):
        value = [member for member in value if member is not None and member != ""]
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value else ""
    except RecursionError:
        raise TypeError("nested too deeply") from None


def members_of(text: str) -> tuple[str, ...]:
    """The members of the list that a field holds, each once; of any other text, that alone."""
    if not text.startswith("["):
        return (text,) if text else ()
    try:
        members = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return (text,)
    texts = (each if isinstance(each, str) else compact_json(each) for each in members if each)
    return tuple(dict.fromkeys(seen for each in texts if (seen := cleaned(each))))
