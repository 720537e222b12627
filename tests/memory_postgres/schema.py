"""Reads the definitions of tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from memory_postgres.tables import ColumnOf, Definition

_COMMENT = re.compile(r"--[^\n]*")
_TABLE = re.compile(
    r"CREATE TABLE (\w+) \((.*?)\)( PARTITION BY LIST \((\w+)\))?( WITH \([^)]*\))?;", re.DOTALL
)
_INDEX = re.compile(r"CREATE INDEX \w+ ON (\w+) (?:USING brin )?\((\w+)")
_COLUMN = re.compile(
    r'"?(\w+)"? (text\[\]|(?:bigint|integer|smallint|text|boolean|bytea|timestamptz|xid8)\b)(.*)'
)
_KEY = re.compile(r"PRIMARY KEY \(([^)]*)\)")
_DEFAULT = re.compile(r"DEFAULT (nextval\('\w+'\)|clock_timestamp\(\)|'[^']*'|\w+)")

BEGINNING = re.compile(r"\s*CREATE TABLE (\w+) \((?!LIKE)")
_REST = re.compile(r"CREATE SEQUENCE \w+;|CREATE INDEX [^;]*;|INSERT INTO [^;]*;", re.DOTALL)


def definitions(text: str) -> tuple[list[Definition], list[str]]:
    """Return the tables of a schema, and the statements that fill them. Raises SyntaxError."""
    text = _COMMENT.sub("", text)
    indexed = _INDEX.findall(text)
    tables = [_table(match, indexed) for match in _TABLE.finditer(text)]
    rest = _TABLE.sub("", text)
    others = _REST.findall(rest)
    if _REST.sub("", rest).strip():
        raise SyntaxError(f"the model can't read this schema: {_REST.sub('', rest).strip()}")
    return tables, [each.rstrip(";") for each in others if each.startswith("INSERT")]


def _table(match: re.Match[str], indexed: list[tuple[str, str]]) -> Definition:
    name, body, _, by, _ = match.groups()
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", body)]
    keys = [_KEY.match(part) for part in parts]
    columns = tuple(_column(name, part) for part, key in zip(parts, keys, strict=True) if key is None)
    names = [column.name for column in columns]
    key = next((tuple(names.index(each.strip()) for each in key[1].split(",")) for key in keys if key), ())
    if not key:
        key = tuple(place for place, part in enumerate(parts) if "PRIMARY KEY" in part)
    leading = {names.index(column) for table, column in indexed if table == name}
    return Definition(
        name, columns, key, frozenset(leading | set(key[:1])), names.index(by) if by is not None else None
    )


def _column(table: str, text: str) -> ColumnOf:
    match = _COLUMN.match(" ".join(text.split()))
    if match is None:
        raise SyntaxError(f"the model can't read a column of {table}: {text}")
    name, kind, rest = match.groups()
    is_required = "NOT NULL" in rest or "PRIMARY KEY" in rest
    if "GENERATED ALWAYS AS IDENTITY" in rest:
        return ColumnOf(name, kind, True, _next(f"{table}.{name}"))
    given = _DEFAULT.search(rest)
    return ColumnOf(name, kind, is_required, None if given is None else _default(given[1], kind))


def _next(sequence: str) -> Callable[[Any], Any]:
    return lambda run: run.nextval(sequence)


def _default(text: str, kind: str) -> Callable[[Any], Any]:
    if text.startswith("nextval"):
        return _next(text[9:-2])
    if text == "clock_timestamp()":
        return lambda run: run.clock_timestamp()
    value: Any = text.strip("'")
    if kind in ("bigint", "integer", "smallint"):
        value = int(text)
    elif kind == "boolean":
        value = text == "true"
    elif kind == "text[]":
        return lambda _: []
    return lambda _: value
