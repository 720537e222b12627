"""`deliveryd presets`: presets of one's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from deliveryd.channels.presets.catalogue import name_problem
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.providers.preset_trial import trial_rows, trials_lines, try_presets
from deliveryd.commands.providers.provider_options import PresetsDirOption
from deliveryd.config import examine
from deliveryd.errors import ConfigError, DeliverydError, UsageError

CASES = "cases"
"""The folder of the case files, in the folder of the presets."""

_SKELETON = Path(__file__).with_name("skeleton")
_READABLE = 0o644  # a preset that others may write is refused


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


def write_skeleton(folder: Path, name: str) -> list[Path]:
    """Write NAME.toml and cases/NAME.toml; return their paths. Raises UsageError, DeliverydError.

    Nothing is overwritten.
    """
    if (problem := name_problem(name)) is not None:
        raise UsageError(f"{name}: {problem}")
    files = {folder / f"{name}.toml": "preset.toml", folder / CASES / f"{name}.toml": "cases.toml"}
    for path in files:
        if os.path.lexists(path):
            raise DeliverydError(f"{path} is there already; choose another name, or remove it")
    if not os.path.lexists(folder.parent):
        raise DeliverydError(f"the folder {folder.parent} doesn't exist: create it first")
    try:
        for path, skeleton in files.items():
            path.parent.mkdir(mode=0o755, exist_ok=True)
            text = (_SKELETON / skeleton).read_text(encoding="utf-8")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _READABLE)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text.replace("NAME", name).replace("FOLDER", str(folder)))
    except OSError as error:
        raise DeliverydError(f"{error.filename or folder} can't be written: {error.strerror}") from None
    return list(files)
