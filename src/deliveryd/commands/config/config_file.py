"""`deliveryd config`: the configuration as it is in force, a new one, an example."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json, print_lines, standard_output
from deliveryd.commands.config.effective import (
    keys_data,
    read_effective,
    toml_lines_of,
    toml_lines_with_origins,
)
from deliveryd.commands.config.new_configuration import given_answers, write_answers, write_configuration
from deliveryd.errors import ConfigError, DeliverydError

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
        typer.Option("--origin", help="Say where each value is from: file and line, environment, default."),
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
    print_lines(f"{file} was written; next: deliveryd check --config {file}")


@config_file.command()
def example() -> None:
    """Print a configuration file with every key."""
    with standard_output() as out:
        out.write(EXAMPLE.read_text(encoding="utf-8"))
