"""The message about a value beyond a bound, written as the file has such values."""

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


def bound_text(problem: ErrorDetails, field: FieldInfo | None) -> str | None:
    """Return the message about a value beyond a bound of its field, or None of any other problem.

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
