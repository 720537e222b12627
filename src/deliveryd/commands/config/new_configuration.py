"""Writes a new configuration file from answers, if `check --offline` accepts it."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import typer

from deliveryd.channels.presets.catalogue import Catalogue
from deliveryd.channels.presets.file import PresetFile
from deliveryd.commands.check.checks import check_examined
from deliveryd.commands.check.findings import Level
from deliveryd.commands.common.output import print_lines
from deliveryd.config import examine
from deliveryd.errors import ConfigError, DeliverydError
from deliveryd.model import BLOCKS
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
        os.link(draft, path)  # fails if the file was made meanwhile
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
    findings = anyio.run(check_examined, examined, ())
    problems = [f"{each.key}: {each.text}" for each in findings if each.level >= Level.FAILED]
    if problems:
        raise ConfigError([problem.replace(str(draft), str(path)) for problem in problems])


class _Answers:
    """Answers by the key of the configuration that they are for, and the questions that were asked."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._questions: dict[str, Callable[[], str]] = {}

    def ask(self, key: str, question: Callable[[], str]) -> None:
        """Ask for the value of a key."""
        self._questions[key] = question
        self.values[key] = question()

    def tables(self) -> dict[str, Any]:
        """Return all answers as tables."""
        tables: dict[str, Any] = {}
        for key, value in self.values.items():
            put(tables, key, value)
        return tables

    def ask_again(self, problems: Sequence[str]) -> bool:
        """Ask again for the keys that have a problem; return whether there are any."""
        wrong = [key for key in self._questions if any(_is_about(key, each) for each in problems)]
        for key in wrong:
            self.ask(key, self._questions[key])
        return bool(wrong)


def _is_about(key: str, problem: str) -> bool:
    return re.search(rf"(?:^|:){re.escape(key)}: ", problem) is not None


def write_answers(file: Path) -> None:
    """Ask on the terminal, and write a file; ask again for what is wrong. Secrets get files beside it.

    Raises DeliverydError, ConfigError.
    """
    if os.path.lexists(file):
        raise DeliverydError(f"{file} is there already; name another file, or remove it")
    answers = _Answers()
    _ask(answers, file.absolute().parent)
    while True:
        try:
            write_configuration(file, answers.tables())
        except ConfigError as error:
            print_lines("", *(f"  {each.removeprefix(f'{file}:')}" for each in error.problems))
            if not answers.ask_again(error.problems):
                raise
        else:
            return


def _ask(answers: _Answers, folder: Path) -> None:
    answers.ask("service.base_url", partial(_address, "Address of the service"))
    if typer.confirm("Does the service require a bearer token?", default=True):
        answers.ask(
            "service.auth.token_file", partial(_secret, folder, "service-token", "token of the service")
        )
    if typer.confirm("Is there a file with the customers, JSON Lines or CSV?", default=False):
        answers.values["customers.source"] = "file"
        answers.ask("customers.path", lambda: _path(folder, "File with the customers", None))
    blocks = list(BLOCKS)
    while blocks:
        blocks.remove(_ask_for_channel(answers, folder, blocks))
        if not blocks or not typer.confirm("Another channel?", default=False):
            break
    answers.ask(
        "journal.url",
        lambda: f"sqlite:///{_path(folder, 'File of the journal', '/var/lib/deliveryd/journal.db')}",
    )
    answers.ask(
        "settings.cache_dir", lambda: _path(folder, "Folder of the cache", "/var/cache/deliveryd/settings")
    )


def _ask_for_channel(answers: _Answers, folder: Path, blocks: Sequence[str]) -> str:
    """Ask for one of these channels; return it."""
    block = _choice("Channel", blocks)
    catalogue = Catalogue()
    presets = {
        name: preset.file
        for name in catalogue.names()
        if (preset := catalogue.find(name)) is not None and block in preset.file.channels
    }
    adapters = [*presets, "http", *(["smtp"] if block == "email" else [])]
    adapter = _choice("Provider", adapters)
    place = f"channels.{block}"
    answers.values[f"{place}.adapter"] = adapter
    if adapter in presets:
        _ask_for_preset(answers, folder, place, adapter, presets[adapter])
    elif adapter == "smtp":
        answers.ask(f"{place}.host", partial(_text, "Mail server"))
        answers.ask(f"{place}.sender", partial(_text, "Address of the sender"))
    else:
        answers.ask(f"{place}.url", partial(_address, "Address of the gateway"))
        address = "{customer.email}" if block == "email" else "{customer.phone}"
        answers.values[f"{place}.json"] = {"to": address, "text": _text_of(block)}
        print_lines(f"  {place}.json defines the request; see deliveryd config example")
    return block


def _text_of(block: str) -> str:
    return {"email": "{content.body}", "inApp": "{content.description}"}.get(block, "{content.text}")


def _ask_for_preset(answers: _Answers, folder: Path, place: str, adapter: str, preset: PresetFile) -> None:
    if "{receipt.url}" in str(preset.table) and "receipts.public_url" not in answers.values:
        answers.ask("receipts.public_url", partial(_address, "Public address for receipts"))
    for name, key in preset.keys.items():
        if key.required or key.advised:
            answers.ask(f"{place}.{name}", partial(_text, f"{name} ({key.description})"))
    for name, secret in preset.secrets.items():
        if secret.required:
            question = partial(_secret, folder, f"{adapter}-{name}", secret.description)
            answers.ask(f"{place}.secrets.{name}", question)


def _choice(question: str, choices: Sequence[str]) -> str:
    answer = ""
    while answer not in choices:
        if answer:
            print_lines(f"  {answer!a} isn't one of them")
        answer = _text(f"{question} ({', '.join(choices)})")
    return answer


def _text(question: str) -> str:
    answer: str = typer.prompt(question)
    return answer.strip()


def _address(question: str) -> str:
    while True:
        answer = _text(f"{question} (https://…)")
        if answer.startswith(("http://", "https://")):
            return answer
        print_lines(f"  {answer!a} doesn't begin with https:// or http://")


def _path(folder: Path, question: str, default: str | None) -> str:
    """Ask for a path, which may be relative to the folder of the configuration."""
    answer: str = typer.prompt(question, default=default).strip()
    return str(folder / (Path(answer).expanduser() if answer.startswith("~/") else answer))


def _secret(folder: Path, name: str, description: str) -> str:
    """Ask for a secret's file; if it isn't there, ask for the secret and write it."""
    while True:
        path = _path(folder, f"File with the secret {name} ({description})", str(folder / name))
        if Path(path).exists():
            return path
        text = typer.prompt(
            f"  {path} isn't there; the secret to write into it (isn't shown)", hide_input=True
        )
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{text}\n")
        except OSError as error:
            print_lines(f"  {path} can't be written: {error.strerror}")
        else:
            return path
