"""Writes tables as TOML, for people to read and to copy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100


def toml_lines(table: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield the lines of a table: short values inline, long ones as tables of their own, below `name`."""
    below = {key: value for key, value in table.items() if _is_table(key, value)}
    for key, value in table.items():
        if key not in below:
            yield f"{toml_key(key)} = {toml_value(value)}"
    for key, value in below.items():
        place = f"{name}.{toml_key(key)}".lstrip(".")
        for each in value if isinstance(value, list) else [value]:
            yield ""
            yield f"[[{place}]]" if isinstance(value, list) else f"[{place}]"
            yield from toml_lines(each, place)


def _is_table(key: str, value: object) -> bool:
    """Whether a value is a table, or a list of them, that doesn't fit on a line."""
    whole = isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)
    )
    return whole and len(f"{key} = {toml_value(value)}") > _WIDTH


def toml_key(key: str) -> str:
    """Write a key, in quotes where it needs them."""
    return key if _BARE.fullmatch(key) else toml_value(key)


def toml_value(value: object) -> str:
    """Write a value on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            members = ", ".join(f"{toml_key(key)} = {toml_value(each)}" for key, each in value.items())
            return f"{{ {members} }}" if members else "{}"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case _:
            return str(value)
