"""`deliveryd config`: the configuration as it is in force, a new one, an example."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import BaseModel

from deliveryd.channels.http.masking import MASK
from deliveryd.channels.options import ONLY_FOR_SMS, ProviderConfig
from deliveryd.channels.presets.catalogue import Catalogue
from deliveryd.channels.presets.table import OVERRIDES, key_values
from deliveryd.channels.registry import is_adapter
from deliveryd.commands.check.cautions import (
    is_credential,
    is_literal_secret,
    is_random,
    is_secret_name,
)
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json, print_lines, standard_output
from deliveryd.commands.config.new_configuration import given_answers, write_answers, write_configuration
from deliveryd.config import Config, examine
from deliveryd.errors import ConfigError, DeliverydError
from deliveryd.model import BLOCKS
from deliveryd.options.file import ConfigFile
from deliveryd.options.toml_text import toml_key, toml_value
from deliveryd.runtime.secret_file import SecretFile

_USER_INFO = re.compile(r"(?<=://)([^/@?#\s:]*):([^/@?#\s]*)(?=@)")
_PARAMETER = re.compile(r"(?<=[?&])([^=&#?]+)=([^&#{]+)")
_BOT = re.compile(r"(?<=/bot)[0-9]+:[^/?#\s{]+")
"""The token that Telegram's addresses have in their path."""

_SENT = frozenset({"headers", "query", "json", "form", "body"})
"""What is sent to a provider, where a secret may stand under any name."""

_WIDEST = 60
"""Characters of a key and its value up to which comments are aligned."""


class EffectiveKey(NamedTuple):
    """A key with its value, secrets masked; `origin`: `file:line`, a variable, `preset NAME` or `default`.

    Until it is known, a key of the configuration has no origin.
    """

    table: tuple[str, ...]
    name: str
    value: Any
    origin: str | None = None

    @property
    def key(self) -> str:
        """The whole key, as problems name it."""
        return ".".join((*self.table, self.name))


def read_effective(path: Path, environ: Mapping[str, str]) -> tuple[list[EffectiveKey], list[str]]:
    """Return the keys in force, without those that have a mistake, and the mistakes.

    Raises ConfigError if nothing of the file can be read.
    """
    examined = examine(path, environ)
    config = examined.usable()
    file = ConfigFile(path, environ, BLOCKS)
    hidden = frozenset(_hidden_paths(config))
    found = [
        each._replace(
            value=_masked(each.name, each.value, hidden), origin=each.origin or file.origin_of(each.key)
        )
        for each in _keys(config, file)
        if each.value not in (None, {}, [], ())
    ]
    return found, examined.problems


def _keys(config: Config, file: ConfigFile) -> Iterator[EffectiveKey]:
    rules = [
        rule.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_without_effect(rule))
        for rule in config.rules
    ]
    yield EffectiveKey((), "rules", rules)
    for section in type(config).model_fields:
        match section:
            case "rules":
                continue
            case "channels":
                yield from _channels(config, file)
            case "customers":
                yield from _of_model((section,), config.customers)
                yield from _of_model((section,), config.customers.options)
            case _:
                yield from _of_model((section,), getattr(config, section))


def _of_model(table: tuple[str, ...], model: BaseModel) -> Iterator[EffectiveKey]:
    """Yield the keys of a table, then those of the tables in it."""
    dumped = model.model_dump(mode="json", by_alias=True)
    below = []
    for name, field in type(model).model_fields.items():
        key, value = field.alias or name, getattr(model, name)
        if field.exclude or name in _without_effect(model):
            continue
        if isinstance(value, BaseModel):
            below.append((key, value))
        else:
            yield EffectiveKey(table, key, dumped[key])
    for key, value in below:
        yield from _of_model((*table, key), value)


def _without_effect(model: BaseModel) -> set[str]:
    """Return the keys of a table that have no effect, which is an error in a file."""
    return {"spent"} if getattr(model, "budget", None) is None else set()


def _channels(config: Config, file: ConfigFile) -> Iterator[EffectiveKey]:
    channels = config.channels
    yield from _of_model(("channels",), channels)
    catalogue = Catalogue(channels.presets_dir)
    for name, channel in channels.configured.items():
        for key in _of_model(("channels", name), channel.common):
            if channel.block == "sms" or key.name not in ONLY_FOR_SMS:
                yield key
        for provider in channel.providers.values():
            yield from _of_provider(provider, file, catalogue)


def _of_provider(provider: ProviderConfig, file: ConfigFile, catalogue: Catalogue) -> Iterator[EffectiveKey]:
    table = tuple(provider.place.split("."))
    given = file.table_at(table)
    adapter = str(given.get("adapter", provider.common.adapter))
    preset = None if is_adapter(adapter) else catalogue.find(adapter)
    made = frozenset() if preset is None else preset.file.table.keys() - given.keys()
    for key in _of_model(table, provider.common):
        if (key.table, key.name) == (table, "adapter"):
            yield key._replace(value=adapter)
        else:
            step = (*key.table, key.name)[len(table)]
            yield key._replace(origin=f"preset {adapter}") if step in made else key
    if preset is None:
        yield from _of_model(table, provider.options)
        return
    in_force = key_values(preset.file, {name: given[name] for name in preset.file.keys if name in given})
    for name, described in preset.file.keys.items():
        is_given = name in given
        value = given[name] if is_given else described.default and in_force[name]
        yield EffectiveKey(table, name, value, None if is_given else f"preset {adapter}")
    own = provider.options.model_dump(mode="json", by_alias=True, exclude_none=True)
    yield from (
        EffectiveKey(table, name, own[name]) for name in ("secrets", *sorted(OVERRIDES)) if name in given
    )


def _hidden_paths(value: object) -> Iterator[str]:
    """Yield the paths that may be secrets themselves, written where a file is expected."""
    if isinstance(value, SecretFile):
        if value.shown is None:
            yield str(value.path)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _hidden_paths(getattr(value, name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _hidden_paths(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _hidden_paths(each)


def _masked(name: str, value: Any, hidden: frozenset[str], *, is_sent: bool = False) -> Any:
    """Mask literal secrets: by the names of their keys, in addresses, and in place of files.

    What is sent to a provider is masked by its looks too.
    """
    is_sent = is_sent or name in _SENT
    if isinstance(value, Mapping):
        # The secrets' files, and their names, are shown.
        names = {key: "" if name == "secrets" else str(key) for key in value}
        return {key: _masked(names[key], each, hidden, is_sent=is_sent) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(name, each, hidden, is_sent=is_sent) for each in value]
    if not isinstance(value, str):
        return value
    if is_sent and (is_credential(value) or is_random(value)):
        return MASK
    if value in hidden or is_literal_secret(name, value):
        return MASK
    return _masked_address(value) if "://" in value else value


def _masked_address(address: str) -> str:
    address = _USER_INFO.sub(lambda match: f"{match[1]}:{MASK}", address)
    address = _BOT.sub(MASK, address)
    return _PARAMETER.sub(
        lambda match: f"{match[1]}={MASK}" if is_secret_name(match[1]) else match[0], address
    )


def toml_lines_of(keys: Sequence[EffectiveKey]) -> Iterator[str]:
    """Yield the keys as TOML."""
    for table, members in _by_table(keys).items():
        yield from _header(table)
        yield from (f"{toml_key(each.name)} = {toml_value(each.value)}" for each in members)


def toml_lines_with_origins(keys: Sequence[EffectiveKey]) -> Iterator[str]:
    """Yield the keys as TOML, each with its origin in a comment."""
    for table, members in _by_table(keys).items():
        yield from _header(table)
        written = [f"{toml_key(each.name)} = {toml_value(each.value)}" for each in members]
        width = max((len(line) for line in written if len(line) <= _WIDEST), default=0)
        for line, each in zip(written, members, strict=True):
            yield f"{line:{width}}  # {each.origin}"


def _by_table(keys: Sequence[EffectiveKey]) -> Mapping[tuple[str, ...], list[EffectiveKey]]:
    tables: dict[tuple[str, ...], list[EffectiveKey]] = {}
    for each in keys:
        tables.setdefault(each.table, []).append(each)
    return tables


def _header(table: tuple[str, ...]) -> Iterator[str]:
    if not table:  # what is in none comes first
        return
    if table != ("service",):
        yield ""
    yield f"[{'.'.join(map(toml_key, table))}]"


def keys_data(keys: Sequence[EffectiveKey]) -> list[Mapping[str, object]]:
    """Return the keys as JSON."""
    return [{"key": each.key, "value": each.value, "origin": each.origin} for each in keys]


EXAMPLE = Path(__file__).with_name("config.example.toml")

config_file = CommandGroup(
    no_args_is_help=True,
    help='Show or write the configuration, or print an example.\n\nUse "deliveryd check" to check a file.',
)


@config_file.command("show")
def show_config(
    *,
    config: ConfigOption = USUAL_CONFIG,
    origin: Annotated[
        bool,
        typer.Option("--origin", help="Print where each value is from: file and line, environment, default."),
    ] = False,
    as_data: AsData = False,
) -> None:
    """Print the configuration in force.

    Includes defaults and the environment. Secrets are masked, also literal ones and passwords in addresses.

    Exit status 78: the configuration has mistakes; keys that have one are left out.
    """
    keys, problems = read_effective(config, os.environ)
    if as_data:
        print_json(keys_data(keys))
    else:
        print_lines(*(toml_lines_with_origins(keys) if origin else toml_lines_of(keys)))
    if problems:
        raise ConfigError(problems)


@config_file.command()
def init(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = USUAL_CONFIG,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A key and its value, such as log.level=debug; asks no questions; can be repeated.",
        ),
    ] = None,
) -> None:
    """Write a new configuration file.

    Asks a few questions on a terminal. Only the owner can read the file; none is ever replaced.
    """
    if values:
        try:
            given = given_answers(values)
        except DeliverydError as error:
            raise typer.BadParameter(str(error)) from None
        write_configuration(file, given)
    elif sys.stdin.isatty() and sys.stdout.isatty():
        write_answers(file)
    else:
        raise typer.BadParameter("standard input isn't a terminal: give the keys with --set")
    print_lines(
        f"{file} was written; next: deliveryd check --config {file}",
        f"only you can read it; for the systemd unit, which has a user of its own, run: chmod 0644 {file}",
    )


@config_file.command()
def example() -> None:
    """Print a configuration file with every key."""
    with standard_output() as out:
        out.write(EXAMPLE.read_text(encoding="utf-8"))
