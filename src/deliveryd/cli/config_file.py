"""`deliveryd config`: the configuration file as text."""

from __future__ import annotations

from pathlib import Path

from deliveryd.cli.command_group import CommandGroup
from deliveryd.cli.standard_output import standard_output

EXAMPLE = Path(__file__).with_name("config.example.toml")

config_file = CommandGroup(
    no_args_is_help=True,
    help='Print an example of the configuration file.\n\nUse "deliveryd check" to check a file.',
)


@config_file.callback()
def _options() -> None:
    """Keep `example` a command of its own: typer makes a group with one command that command."""


@config_file.command()
def example() -> None:
    """Print a configuration file with every key."""
    with standard_output() as out:
        out.write(EXAMPLE.read_text(encoding="utf-8"))
