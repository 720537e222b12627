"""Writes a new configuration file from answers, if `check --offline` accepts it."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from deliveryd.commands.check.checks import check_examined, check_files
from deliveryd.commands.check.findings import Level
from deliveryd.config import examine
from deliveryd.errors import ConfigError, DeliverydError
from deliveryd.options.toml_text import toml_key, toml_value

_HEAD = "# Written by deliveryd config init. deliveryd config example prints all keys."


def given_answers(values: Sequence[str]) -> dict[str, Any]:
    """Return `KEY=VALUE` texts as tables. Raises DeliverydError."""
    tables: dict[str, Any] = {}
    for each in values:
        key, equals, text = each.partition("=")
        if not equals or not all(key.split(".")):
            raise DeliverydError(f"--set {key}: expected KEY=VALUE, such as service.base_url=https://…")
        put(tables, key, _value(text))
    return tables


def _value(text: str) -> Any:
    """Return a TOML value, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def put(tables: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key. Raises DeliverydError if something else is there."""
    *path, name = key.split(".")
    table = tables
    for step in path:
        below = table.setdefault(step, {})
        if not isinstance(below, dict):
            raise DeliverydError(f"--set {key}: {step} is a value already, not a table")
        table = below
    if name in table:
        raise DeliverydError(f"--set {key}: is given twice")
    table[name] = value


def write_configuration(path: Path, tables: Mapping[str, Any]) -> None:
    """Write a file that only its owner can read. It appears whole and checked, or not at all.

    Raises ConfigError with what is wrong with the answers, DeliverydError if there is a file or it can't be
    written.
    """
    if os.path.lexists(path):
        raise DeliverydError(f"{path} is there already; name another file, or remove it")
    text = "\n".join([_HEAD, *_lines(tables)]) + "\n"
    try:
        number, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    except OSError as error:
        raise DeliverydError(f"{path} can't be written: {error.strerror}") from None
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(number)
        _insist_on_good(Path(draft), path)
        os.link(draft, path)  # fails if somebody made the file meanwhile
    except FileExistsError:
        raise DeliverydError(f"{path} is there already; name another file, or remove it") from None
    except OSError as error:
        raise DeliverydError(f"{path} can't be written: {error.strerror}") from None
    finally:
        Path(draft).unlink()


def _lines(table: Mapping[str, Any], name: str = "") -> list[str]:
    """Return tables as TOML, each table of tables with a header of its own."""
    plain = {key: value for key, value in table.items() if not _is_section(name, value)}
    lines = ["", f"[{name}]"] if name and plain else []
    lines += [f"{toml_key(key)} = {toml_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if key not in plain:
            lines += _lines(value, f"{name}.{toml_key(key)}".lstrip("."))
    return lines


def _is_section(name: str, value: object) -> bool:
    """Whether a table gets a header: those at the top, channels, providers; smaller ones stand on a line."""
    if not isinstance(value, Mapping):
        return False
    return name in ("", "channels") or any(isinstance(each, Mapping) for each in value.values())


def _insist_on_good(draft: Path, path: Path) -> None:
    examined = examine(draft)
    findings = anyio.run(check_examined, examined, check_files)
    problems = [f"{each.key}: {each.text}" for each in findings if each.level >= Level.FAILED]
    if problems:
        raise ConfigError([problem.replace(str(draft), str(path)) for problem in problems])
