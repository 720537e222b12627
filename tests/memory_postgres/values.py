"""What the server's operators and functions do with values; NULL is None, an instant microseconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, TypeVar

T = TypeVar("T")

OVER = object()
"""Stands for how many rows there are in all."""


def once(function: Callable[[], T]) -> Callable[[], T]:
    """The function, which remembers what it returned."""
    kept: list[T] = []

    def called() -> T:
        if not kept:
            kept.append(function())
        return kept[0]

    return called


def both(left: bool | None, right: bool | None) -> bool | None:
    """AND."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def negation(value: bool | None) -> bool | None:
    """NOT."""
    return None if value is None else not value


def either(left: bool | None, right: bool | None) -> bool | None:
    """OR."""
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def concat(left: Any, right: Any) -> str | None:
    """||"""
    if left is None or right is None:
        return None
    return (left if isinstance(left, str) else text(left)) + (
        right if isinstance(right, str) else text(right)
    )


def divide(left: Any, right: Any) -> Any:
    """/"""
    if left is None or right is None:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return (
            int(left / right)
            if abs(left) < 1 << 52
            else (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)
        )
    return left / right


def like(value: str | None, pattern: str) -> bool | None:
    """LIKE, as far as it asks for a beginning."""
    assert pattern.endswith("%") and "%" not in pattern[:-1] and "_" not in pattern  # noqa: PT018
    return None if value is None else value.startswith(pattern[:-1])


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def compare_rows(op: str, left: Sequence[Any] | None, right: Sequence[Any] | None) -> bool | None:
    """A comparison of rows: the first pair that differs decides, unless an unknown one comes before it."""
    if left is None or right is None:
        return None
    for one, other in zip(left, right, strict=True):
        if one is None or other is None:
            return None
        if one != other:
            return op != "=" and _COMPARE[op](one, other)
    return op in ("=", "<=", ">=")


def among(value: Any, items: Iterable[Any]) -> bool | None:
    """IN."""
    found = list(items)
    if value is None:
        return None if found else False
    if value in [each for each in found if each is not None]:
        return True
    return None if None in found else False


def any_of(value: Any, op: str, items: Sequence[Any] | None) -> bool | None:
    """A comparison with any of an array."""
    if items is None:
        return None
    found = [None if value is None or each is None else _COMPARE[op](value, each) for each in items]
    return True if True in found else None if None in found else False


def all_of(value: Any, op: str, items: Sequence[Any] | None) -> bool | None:
    """A comparison with all of an array."""
    if items is None:
        return None
    found = [None if value is None or each is None else _COMPARE[op](value, each) for each in items]
    return False if False in found else None if None in found else True


def text(value: Any) -> Any:
    """A value as text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def integer(value: Any) -> int | None:
    """A value as a whole number."""
    if value is None:
        return None
    if isinstance(value, float):
        return round(value)
    if isinstance(value, Decimal):
        return int(value.to_integral_value(ROUND_HALF_UP))
    return int(value)


def floating(value: Any) -> float | None:
    """A value as one of double precision."""
    return None if value is None else float(value)


def array(value: Any) -> Any:
    """An array that may be given as text, of numbers."""
    return [int(each) for each in value.strip("{}").split(",")] if isinstance(value, str) else value


def same(value: Any) -> Any:
    """The value as it is."""
    return value


def unnest(arrays: Sequence[Sequence[Any] | None], ordinality: bool) -> Iterable[tuple[Any, ...]]:
    """The rows that arrays are the columns of."""
    lists = [each or [] for each in arrays]
    longest = max(map(len, lists))
    if any(len(each) != longest for each in lists):
        lists = [[*each, *([None] * (longest - len(each)))] for each in lists]
    return zip(*lists, range(1, longest + 1), strict=True) if ordinality else zip(*lists, strict=True)


def scalar(rows: Sequence[tuple[Any, ...]]) -> Any:
    """The value of a query that returns one row at most."""
    if not rows:
        return None
    assert len(rows) == 1, "more than one row returned by a subquery used as an expression"
    return rows[0][0] if len(rows[0]) == 1 else rows[0]


def united(
    left: Sequence[tuple[Any, ...]], right: Sequence[tuple[Any, ...]], is_all: bool
) -> list[tuple[Any, ...]]:
    """UNION."""
    return [*left, *right] if is_all else list(dict.fromkeys((*left, *right)))


def ordered(entries: list[Any], descends: Sequence[bool]) -> list[Any]:
    """Entries whose first part is what they go by; NULL comes last, or first where it descends."""
    for place in range(len(descends) - 1, -1, -1):
        entries.sort(key=lambda entry: (entry[0][place] is None, entry[0][place]), reverse=descends[place])
    return entries


def first_of_each(entries: Sequence[Any]) -> list[Any]:
    """DISTINCT ON: entries whose last part is what has to differ."""
    found: dict[Any, Any] = {}
    for entry in entries:
        found.setdefault(entry[-1], entry)
    return list(found.values())


# aggregates, of values in their order


def _given(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "count": lambda values: len(_given(values)),
    "max": lambda values: max(_given(values), default=None),
    "min": lambda values: min(_given(values), default=None),
    "sum": lambda values: sum(found) if (found := _given(values)) else None,
    "bool_or": lambda values: any(found) if (found := _given(values)) else None,
    "array_agg": lambda values: values or None,
}


def _of_texts(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: None if None in args else function(*args)


def _left(value: str, length: int) -> str:
    return value[:length]


def _substr(value: str, start: int, length: int | None = None) -> str:
    return value[start - 1 :] if length is None else value[start - 1 : start - 1 + length]


def _part(value: str, by: str, number: int) -> str:
    parts = value.split(by)
    return parts[number - 1] if number <= len(parts) else ""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "substr": _of_texts(_substr),
    "strpos": _of_texts(lambda value, part: value.find(part) + 1),
    "split_part": _of_texts(_part),
    "starts_with": _of_texts(lambda value, part: value.startswith(part)),
    "left": _of_texts(_left),
    "lower": _of_texts(lambda value: value.lower()),
    "rtrim": _of_texts(lambda value, chars: value.rstrip(chars)),
    "to_json": _of_texts(lambda value: json.dumps(value, ensure_ascii=False)),
    "greatest": lambda *values: max(_given(values), default=None),
    "least": lambda *values: min(_given(values), default=None),
    "extract": _of_texts(lambda value: Decimal(value) / 1_000_000),
    "cardinality": _of_texts(len),
}

CASTS: dict[str, Callable[[Any], Any]] = {
    "int8": integer,
    "int4": integer,
    "int": integer,
    "bigint": integer,
    "text": text,
    "float8": floating,
    "int2[]": array,
    "int8[]": array,
    "int4[]": array,
    "text[]": same,
    "bool[]": same,
    "bytea[]": same,
    "regclass": same,
    "regclass[]": same,
    "oid[]": same,
}
