"""`deliveryd presets`: presets of one's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from deliveryd.cli.alive import USUAL_CONFIG
from deliveryd.cli.command_group import CommandGroup
from deliveryd.cli.options import AsData, ConfigOption
from deliveryd.cli.output import print_json, print_lines
from deliveryd.cli.provider_options import PresetsDirOption
from deliveryd.config import examine
from deliveryd.errors import ConfigError, UsageError
from deliveryd.inspection.new_preset import CASES, write_skeleton
from deliveryd.inspection.preset_trial import trial_rows, trials_lines, try_presets


class _Presets(TyperGroup):
    """Names the command that lists presets; there is none here."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments name."""
        if args[0] == "list":
            raise UsageError("deliveryd channels list lists presets; --presets-dir adds those of a folder")
        return super().resolve_command(ctx, args)


presets = CommandGroup(
    cls=_Presets,
    no_args_is_help=True,
    help="Describe a provider that deliveryd has no preset for.\n\n"
    "A preset is one TOML file in the folder that channels.presets_dir names.",
)


@presets.command("new")
def new_preset(
    *,
    config: ConfigOption = USUAL_CONFIG,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the preset, as adapter will have it.")],
    presets_dir: PresetsDirOption = None,
    as_data: AsData = False,
) -> None:
    """Write the skeleton of a preset, and a file of cases for it.

    Both are complete, with comments that say what to fill in. Without --presets-dir they go into the
    channels.presets_dir of the configuration. Nothing is overwritten.
    """
    folder = presets_dir if presets_dir is not None else _configured(config)
    preset, cases = write_skeleton(folder, name)
    if as_data:
        print_json({"preset": str(preset), "cases": str(cases)})
        return
    print_lines(
        f"{preset}: fill in what the comments ask for",
        f"{cases}: put the provider's examples in",
        f"then: deliveryd presets test {folder} {name}",
    )


@presets.command("test")
def try_all(
    *,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the presets.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Presets; left out: all of the folder.")
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", metavar="FOLDER", help="Folder of the case files; left out: cases in it."),
    ] = None,
    as_data: AsData = False,
) -> None:
    """Run the cases of presets offline.

    Prints each case that differs: what it expects, what came, and for an answer the row that decided.
    Names the rows of answers without a case, and kinds of cases that are missing; that is no failure.

    Exit status 1: a case differs, or a preset has none.
    """
    trials = try_presets(folder, folder / CASES if cases is None else cases, names or ())
    if as_data:
        print_json(trial_rows(trials))
    else:
        print_lines(*trials_lines(trials))
    if not all(trial.is_good for trial in trials):
        raise typer.Exit(1)


def _configured(config: Path) -> Path:
    """Return the folder that a configuration names. Raises ConfigError, UsageError."""
    if not os.path.lexists(config):
        raise UsageError(
            f"{config} doesn't exist; --config names another file, --presets-dir the folder itself"
        )
    examined = examine(config)
    if examined.config is None:
        raise ConfigError(examined.problems)
    folder = examined.config.channels.presets_dir
    if folder is None:
        raise UsageError(f"{config} has no channels.presets_dir; set it, or give --presets-dir")
    return folder
