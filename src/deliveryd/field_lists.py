"""Fields of a customer that hold a list, such as their devices: it is kept as JSON text."""

from __future__ import annotations

import json
from typing import Any

from deliveryd.cleaning import cleaned

TEXT_FIELDS = frozenset({"name", "language", "phone", "email"})
"""Fields that are shown, or that channels need as they are, and so can't be a list."""

MOST_MEMBERS = 1000
"""Members of a list that count, the last ones: far more than anybody has devices."""


def field_text(name: str, value: object) -> str:
    """The text of a customer's field that is a list or an object where the customers are kept.

    Raises TypeError if it can't be one: it is the name or the language, or holds what JSON doesn't have.
    """
    if name in TEXT_FIELDS or not isinstance(value, list | dict):
        raise TypeError("neither a string nor a number")
    return compact_json(value)


def compact_json(value: list[object] | dict[str, object]) -> str:
    """A list or an object as compact JSON, always the same for the same: the names in objects are sorted.

    Empty members of a list are left out, and an empty one is blank. Raises TypeError if it holds what JSON
    doesn't have.
    """
    if isinstance(value, list):
        value = [member for member in value if member is not None and member != ""]
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True) if value else ""
    except RecursionError:
        raise TypeError("nested too deeply") from None


def members_of(text: str) -> tuple[str, ...]:
    """The members of the list that a field holds, each once; of any other text, that alone.

    Of a long list there are the last `MOST_MEMBERS`. An object is written as `compact_json` does, also where
    it is a text. Lists within the list, and what isn't valid Unicode, are left out.
    """
    if not text:
        return ()
    try:
        members = _parsed(text)[-MOST_MEMBERS:] if is_list(text) else [text]
        texts = [
            _as_object(each) if isinstance(each, str) else compact_json(each)
            for each in members
            if _is_one(each)
        ]
    except (ValueError, TypeError, RecursionError):
        return (text,)
    seen = (each for each in texts if each.isascii() or _is_unicode(each))
    return tuple(dict.fromkeys(filter(None, seen)))


def _parsed(text: str) -> Any:
    return json.loads(text, parse_int=str, parse_float=str)


def _as_object(text: str) -> str:
    """The text, cleaned; and written as all others of the object that it may hold."""
    text = cleaned(text)
    if not text.startswith("{"):
        return text
    try:
        written = compact_json(_parsed(text))
    except (ValueError, TypeError, RecursionError):
        return text
    return written if written.isascii() or _is_unicode(written) else text


def is_list(text: str) -> bool:
    """Whether a field's text is meant as a list."""
    return text.startswith("[")


def _is_one(member: object) -> bool:
    return bool(member) and isinstance(member, str | dict)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
