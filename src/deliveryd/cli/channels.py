"""`deliveryd channels`: what a channel can be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deliveryd.channels.preset_catalogue import Catalogue
from deliveryd.cli.options import AsData
from deliveryd.cli.output import say, say_json
from deliveryd.config import examine
from deliveryd.errors import ConfigError
from deliveryd.inspection.adapters import adapter_lines, adapter_rows, describe_adapter, row_lines

channels = typer.Typer(
    no_args_is_help=True,
    help="Show what a channel can be.\n\n"
    "A preset is the http adapter with the tables of one provider filled in.",
)

PresetsOf = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Include the presets that this configuration file adds.",
        envvar="DELIVERYD_CONFIG",
    ),
]


@channels.command("list")
def list_adapters(*, config: PresetsOf = None, as_data: AsData = False) -> None:
    """List adapters and presets.

    For presets: whether the provider reports deliveries, what it does with repeats, and what settles a doubt.
    """
    rows = adapter_rows(_catalogue(config))
    if as_data:
        say_json([row._asdict() for row in rows])
    else:
        say(*row_lines(rows))


@channels.command("show")
def show_adapter(
    *,
    config: PresetsOf = None,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an adapter or a preset.")],
    as_data: AsData = False,
) -> None:
    """Show an adapter or a preset.

    Prints its keys. For a preset also what the provider promises, a table to copy, the tables behind it, and
    a source for each fact.
    """
    catalogue = _catalogue(config)
    if as_data:
        say_json(describe_adapter(catalogue, name))
    else:
        say(*adapter_lines(catalogue, name))


def _catalogue(config: Path | None) -> Catalogue:
    """Return the presets of the package, and those of a configuration file. Raises ConfigError."""
    if config is None:
        return Catalogue()
    examined, problems = examine(config)
    if examined is None:
        raise ConfigError(problems)
    return Catalogue(examined.channels.presets_dir)
