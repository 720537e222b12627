"""`deliveryd channels`: what a channel can be, and what its provider's answers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deliveryd.channels.presets.catalogue import Catalogue
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.offline import ProviderChoice, offline_provider
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.providers.adapters import adapter_lines, adapter_rows, describe_adapter, row_lines
from deliveryd.commands.providers.answers import verdict_data, verdict_lines, verdict_on
from deliveryd.commands.providers.provider_options import (
    AtOption,
    KeysOption,
    PresetOption,
    PresetsDirOption,
    ProviderOption,
    SecretsOption,
    TriedChannel,
    instant_of,
    read_message,
)
from deliveryd.config import examine
from deliveryd.errors import ConfigError

channels = CommandGroup(
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
def list_adapters(
    *, config: PresetsOf = None, presets_dir: PresetsDirOption = None, as_data: AsData = False
) -> None:
    """List adapters and presets.

    For presets: whether the provider reports deliveries, what it does with repeats, and what settles a doubt.
    """
    rows = adapter_rows(_catalogue(config, presets_dir))
    if as_data:
        print_json([row._asdict() for row in rows])
    else:
        print_lines(*row_lines(rows))


@channels.command("show")
def show_adapter(
    *,
    config: PresetsOf = None,
    presets_dir: PresetsDirOption = None,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an adapter or a preset.")],
    as_data: AsData = False,
) -> None:
    """Show an adapter or a preset.

    Prints its keys. For a preset also what the provider promises, a table to copy, the tables behind it, and
    a source for each fact.
    """
    catalogue = _catalogue(config, presets_dir)
    if as_data:
        print_json(describe_adapter(catalogue, name))
    else:
        print_lines(*adapter_lines(catalogue, name))


@channels.command("test")
def try_answer(
    *,
    config: ConfigOption = USUAL_CONFIG,
    channel: TriedChannel = None,
    provider: ProviderOption = None,
    preset: PresetOption = None,
    keys: KeysOption = None,
    secrets: SecretsOption = None,
    presets_dir: PresetsDirOption = None,
    answer: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help='A raw HTTP answer of the provider, its body up to the end; "-": standard input.',
        ),
    ],
    at: AtOption = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address that answered; left out: that of the provider."),
    ] = None,
    as_data: AsData = False,
) -> None:
    """Show what an answer of a provider means.

    Sends and records nothing.
    """
    choice = ProviderChoice(config, channel, provider, preset, keys or (), secrets or (), presets_dir)
    verdict, decided_by = verdict_on(
        offline_provider(choice), read_message(answer), answer, instant_of(at), url
    )
    if as_data:
        print_json({**verdict_data(verdict), "decided_by": decided_by})
    else:
        print_lines(*verdict_lines(verdict, decided_by))


def _catalogue(config: Path | None, presets_dir: Path | None) -> Catalogue:
    """Return the presets of the package, and of a folder or a configuration file. Raises ConfigError."""
    if presets_dir is not None:
        catalogue = Catalogue(presets_dir)
        if problems := list(catalogue.problems()):
            raise ConfigError([f"--presets-dir: {problem}" for problem in problems])
        return catalogue
    if config is None:
        return Catalogue()
    examined = examine(config)
    if examined.config is None:
        raise ConfigError(examined.problems)
    return Catalogue(examined.config.channels.presets_dir)
