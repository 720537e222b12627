"""A configuration file as tables: read, overridden by the environment, validated, with mistakes collected.

A mistake is reported as `file:key: what to do`, or under the environment variable that set the value.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_args

from pydantic import BaseModel, PlainSerializer, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from deliveryd.errors import ConfigError
from deliveryd.options.suggestion import plain_message, suggestion
from deliveryd.options.tables import LoadedOnUse

PREFIX = "DELIVERYD_"
_WHICH = "; --config or DELIVERYD_CONFIG names another file"

Model = TypeVar("Model", bound=BaseModel)
Loc = tuple[int | str, ...]


class Elsewhere(NamedTuple):
    """The key that a value was made from. `label` is what was made, if the key alone isn't clear."""

    key: str
    label: str = ""


class Opened(NamedTuple):
    """A file or folder that a configuration was read from, and its status when it was opened."""

    path: Path
    status: os.stat_result


class ConfigFile:
    """The tables of a file, and the problems found in them so far.

    `opened` are the files that they were read from: this one, and those of presets.

    `names` are keys in their proper case, since names of environment variables have none. Raises ConfigError
    if the file isn't readable TOML.
    """

    def __init__(self, path: Path, environ: Mapping[str, str], names: Iterable[str]) -> None:
        self.tables, opened = _read(path)
        self.opened = [opened]
        self.problems: list[str] = []
        self._path = path
        self._context = {"base_dir": path.absolute().parent}
        self._names = tuple(names)
        self._variables: dict[str, str] = {}
        self._made_by: dict[str, str] = {}
        self._elsewhere: dict[str, Elsewhere] = {}
        self._overlay(environ)

    def validate(
        self, model: type[Model], data: Mapping[str, Any], prefix: str = "", known: Iterable[str] = ()
    ) -> Model | None:
        """Validate the table at `prefix`; return None, and note the mistakes, if it is invalid.

        `known` are further keys of the table to suggest.
        """
        try:
            return model.model_validate(data, context=self._context)
        except ValidationError as error:
            reported_keys = set()
            problems = error.errors(include_url=False, include_input=False)
            places = [problem["loc"] for problem in problems]
            for problem in problems:
                loc = problem["loc"]
                if problem["type"] == "too_short" and any(
                    len(place) > len(loc) and place[: len(loc)] == loc for place in places
                ):  # only because a member of the list is invalid, which is reported
                    continue
                path = _path_in(data, problem["loc"], problem["type"])
                key = ".".join([*prefix.split("."), *path] if prefix else path)
                if key in reported_keys:  # a value that matches none of several types
                    continue
                reported_keys.add(key)
                if problem["type"] == "extra_forbidden":
                    self._complain_of_unknown(key, [*_fields_at(model, path[:-1]), *known])
                else:
                    field = _fields_at(model, path[:-1]).get(path[-1]) if path else None
                    text = _bound_text(problem, field) or _text_of(problem["type"], problem["msg"])
                    self.complain(key, text)
            return None

    def remainder(self, model: type[Model], data: Mapping[str, Any]) -> Model | None:
        """Return the table without its invalid values, or None if that isn't valid either."""
        try:
            return model.model_validate(data, context=self._context)
        except ValidationError as error:
            rest = dict(data)
            for problem in error.errors(include_url=False, include_input=False):
                rest = _without(rest, _path_in(data, problem["loc"], problem["type"]))
        try:
            return model.model_validate(rest, context=self._context)
        except ValidationError:
            return None

    def report_at(self, places: Mapping[str, Elsewhere]) -> None:
        """Report problems with these keys, and with what is below them, at the keys that the file has."""
        self._elsewhere.update(places)

    def complain(self, key: str, text: str) -> None:
        """Record a problem with the value at `key`."""
        if (moved := self._moved(key)) is not None:
            key, label = moved
            text = f"{label}: {text}" if label else text
        culprits = [variable] if (variable := self._variable_at(key)) else self._variables_named(key, text)
        self.problems.append(f"{', '.join(culprits) or self._place(key)}: {text}")

    def _moved(self, key: str) -> Elsewhere | None:
        return next((self._elsewhere[each] for each in _and_above(key) if each in self._elsewhere), None)

    def complained_of(self, key: str) -> bool:
        """Whether a problem with the value at `key` was recorded."""
        return any(problem.startswith(f"{self.place_of(key)}: ") for problem in self.problems)

    def _complain_of_unknown(self, key: str, known: Iterable[str]) -> None:
        text = f"unknown key{suggestion(key.rpartition('.')[2], known)}"
        if key in self._made_by:
            self.problems.append(f"{self._made_by[key]}: {text}")
        else:
            self.complain(key, text)

    def place_of(self, key: str) -> str:
        """Return where the value at `key` was set: the variable, or the file with the key."""
        if (moved := self._moved(key)) is not None:
            key = moved.key
        return self._variable_at(key) or self._place(key)

    def origin_of(self, key: str) -> str:
        """Return where the value at `key` is from: `file:line`, a variable, or `default`."""
        if (variable := self._variable_at(key)) is not None:
            return variable
        steps = key.split(".")
        if steps[-1] not in self.table_at(steps[:-1]):
            return "default"
        line = next((self._lines[known] for known in _and_above(key) if known in self._lines), None)
        return str(self._path) if line is None else f"{self._path}:{line}"

    def table_at(self, steps: Sequence[str]) -> Mapping[str, Any]:
        """Return the table at this path as it is given; an empty one if there is none."""
        table: Any = self.tables
        for step in steps:
            table = table.get(step, {}) if isinstance(table, Mapping) else {}
        return table if isinstance(table, Mapping) else {}

    @cached_property
    def _lines(self) -> Mapping[str, int]:
        """The line of each key of the file."""
        try:
            text = self._path.read_text(encoding="utf-8-sig")
        except OSError:  # it was there a moment ago
            return {}
        return {key.replace('"', ""): line for line, key in _keys_with_lines(text.splitlines())}

    def _place(self, key: str) -> str:
        return f"{self._path}:{key}" if key else str(self._path)

    def _variable_at(self, key: str) -> str | None:
        """Return the variable that set the value at `key`, or a table that contains it."""
        return next((self._variables[known] for known in _and_above(key) if known in self._variables), None)

    def _variables_named(self, table: str, text: str) -> list[str]:
        """Return the variables that set those keys of a table that a problem with the whole table names."""
        words = set(_WORD.findall(text))
        return [
            variable
            for key, variable in self._variables.items()
            if key.startswith(f"{table}.") and key.rpartition(".")[2] in words
        ]

    def _overlay(self, environ: Mapping[str, str]) -> None:
        """Override the file's values with the environment's."""
        for variable, text in sorted(environ.items()):
            name = variable.removeprefix(PREFIX)
            if name == variable or "__" not in name:
                continue
            *tables, last = name.lower().split("__")
            place = self.tables
            path: list[str] = []
            for table in tables:
                key = self._spelling(table, place)
                path.append(key)
                if key not in place:
                    self._made_by[".".join(path)] = variable
                below = place.setdefault(key, {})
                place = below if isinstance(below, dict) else {}
            key = self._spelling(last, place)
            place[key] = _toml_value(text)
            self._variables[".".join([*path, key])] = variable

    def _spelling(self, key: str, place: Mapping[str, Any]) -> str:
        return next((known for known in (*place, *self._names) if known.lower() == key), key)


def _and_above(key: str) -> list[str]:
    """Return a key and the tables that it is in, the innermost first."""
    steps = key.split(".")
    return [".".join(steps[:count]) for count in range(len(steps), 0, -1)]


def _read(path: Path) -> tuple[dict[str, Any], Opened]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            opened = Opened(path, os.fstat(file.fileno()))
            text = file.read()
    except OSError as error:
        which = _WHICH if isinstance(error, FileNotFoundError) else ""
        raise ConfigError([f"{path}: can't be read: {error.strerror}{which}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: not UTF-8 text"]) from None
    try:
        return tomllib.loads(text), opened
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: {_toml_problem(text, str(error))}"]) from None


def _toml_problem(text: str, said: str) -> str:
    """Describe the error in invalid TOML, with the name of a key given twice, which tomllib omits."""
    place = _LINE.search(said)
    if place is None or not said.startswith(_TWICE):
        return f"invalid TOML: {said}"
    last = int(place[1]) if place[1] is not None else text.count("\n") + 1
    *earlier, (number, name) = _keys_with_lines(text.splitlines()[:last])
    also = next((f", on line {line} too" for line, key in reversed(earlier) if key == name), "")
    return f"line {number}: {name} is given twice{also}"


def _keys_with_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the full names of the tables and keys of a file, except those inside values."""
    table = ""
    for number, line in enumerate(lines, 1):
        if header := _HEADER.match(line):
            table = header[1]
            yield number, table
        elif key := _KEY.match(line):
            yield number, f"{table}.{key[1]}".lstrip(".")


_TWICE = ("Cannot overwrite a value", "Cannot declare")
_LINE = re.compile(r"at (?:line (\d+), column \d+|end of document)")
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]")
_WORD = re.compile(r"[\w-]+")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("greater than", "gt"),
    "less_than": ("less than", "lt"),
}


def _bound_text(problem: ErrorDetails, field: FieldInfo | None) -> str | None:
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


def _text_of(kind: str, message: str) -> str:
    if kind == "missing":
        return "is missing"
    if kind in ("model_type", "dict_type"):
        return "expected a table"
    if kind in ("tuple_type", "list_type"):
        return 'expected a list such as ["a", "b"]'
    text = plain_message(message)
    return text[:1].lower() + text[1:]


def _path_in(data: Any, loc: Loc, kind: str) -> list[str]:
    """Return the keys on the path to a value, without the type names that pydantic adds."""
    path = []
    for depth, part in enumerate(loc, 1):
        in_table = isinstance(data, Mapping) and part in data
        in_list = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if in_table or in_list:
            data = data[part]
        elif kind != "missing" or depth < len(loc):
            continue
        path.append(str(part))
    return path


def _without(table: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    """Return a table without the value at a path, or without the list that contains it."""
    if not path:
        return dict(table)
    key, *deeper = path
    below = table.get(key)
    if deeper and isinstance(below, Mapping):
        return {**table, key: _without(below, deeper)}
    return {name: value for name, value in table.items() if name != key}


def _fields_at(model: type[BaseModel], path: Iterable[str]) -> dict[str, FieldInfo]:
    """Return the fields of the table at this path, by their keys."""
    for part in path:
        if part.isdigit():  # of a list of tables
            continue
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        found = next(_models_in(fields[part].annotation), None) if part in fields else None
        if found is None:
            return {}
        model = found
    return {field.alias or name: field for name, field in model.model_fields.items() if not field.exclude}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    arguments = get_args(annotation)
    loaded = [each.load() for each in arguments if isinstance(each, LoadedOnUse)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in loaded or arguments:
        yield from _models_in(argument)
