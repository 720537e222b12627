"""What pydantic says about a wrong value, in the words of this program's own messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pydantic import PlainSerializer
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("greater than", "gt"),
    "less_than": ("less than", "lt"),
}
_OWN = "Value error, "
"""Before the message of a ValueError that a validator raised."""

_HOW = ", unable to parse"
_EXPECTATION = "Input should be "


def plain_message(message: str) -> str:
    """Return a message about a value without pydantic's words; any other message as it is."""
    text, _, _ = message.removeprefix(_OWN).partition(_HOW)
    return f"must be {text.removeprefix(_EXPECTATION)}" if text.startswith(_EXPECTATION) else text


def bound_text(problem: ErrorDetails, field: FieldInfo | None) -> str | None:
    """Return what is said of a value beyond a bound of its field, or None of any other problem.

    The bound is written as the file has such values: a duration or a size with its unit.
    """
    if problem["type"] not in _BOUNDS:
        return None
    relation, name = _BOUNDS[problem["type"]]
    bound = problem["ctx"][name]
    kept = field.metadata if field is not None else ()
    writers = (each.func for each in kept if isinstance(each, PlainSerializer))
    write = cast("Callable[[Any], object]", next(writers, str))
    return f"must be {relation} {write(bound)}"
