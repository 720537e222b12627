"""Fields of a customer that hold a list, such as their devices: it is kept as JSON text."""

from __future__ import annotations

import json

from deliveryd.cleaning import cleaned

TEXT_FIELDS = frozenset({"name", "language", "phone", "email"})
"""Fields that are shown, or that channels need as they are, and so can't be a list."""

MOST_MEMBERS = 100
"""Members of a list that count: far more than anybody has devices."""


def field_text(name: str, value: object) -> str:
    """The text of a customer's field that is a list or an object where the customers are kept.

    Raises TypeError if it can't be one: it is the name or the language, or holds what JSON doesn't have.
    """
    if name in TEXT_FIELDS or not isinstance(value, list | dict):
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
    """The members of the list that a field holds, each once; of any other text, that alone.

    There are `MOST_MEMBERS` at most. Lists within it, and what isn't valid Unicode, are left out.
    """
    if not text.startswith("["):
        return (text,) if text else ()
    try:
        members = json.loads(text, parse_int=str, parse_float=str)
        texts = [each if isinstance(each, str) else compact_json(each) for each in members if _is_one(each)]
    except (ValueError, TypeError, RecursionError):
        return (text,)
    seen = (cleaned(each) for each in texts if each.isascii() or _is_unicode(each))
    return tuple(dict.fromkeys(filter(None, seen)))[:MOST_MEMBERS]


def _is_one(member: object) -> bool:
    return bool(member) and isinstance(member, str | dict)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
