"""`deliveryd presets`: presets of one's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from deliveryd.channels.options import ProviderTable
from deliveryd.channels.presets.catalogue import (
    PACKAGED,
    Preset,
    check_tables,
    name_problem,
    preset_names,
    read_preset,
)
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.providers.preset_cases import CaseFile, read_cases
from deliveryd.commands.providers.preset_running import CaseResult, run_case
from deliveryd.commands.providers.trying import PresetsDirOption
from deliveryd.config import examine
from deliveryd.errors import ConfigError, DeliverydError, UsageError
from deliveryd.options.file import ConfigFile

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

    Both are complete, with comments on what to fill in. Without --presets-dir they go into the
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
    folder = examine(config).usable().channels.presets_dir
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


class DifferingCase(NamedTuple):
    """A case that differs. `decided_by` is the row of `answers` that decided, where one was looked for."""

    kind: str
    number: int
    says: str
    differences: Sequence[str]
    decided_by: str | None


class Trial(NamedTuple):
    """The cases of one preset. `missing` is the case file if there is none.

    `rows_without_case` are rows of `answers`, from 1, that decided no case. `kinds_without_case` are those of
    which there is none, though the preset has what they show.
    """

    preset: str
    cases: int
    failures: Sequence[DifferingCase]
    missing: Path | None = None
    rows_without_case: Sequence[int] = ()
    kinds_without_case: Sequence[str] = ()

    @property
    def is_good(self) -> bool:
        """Whether there are cases, and none differs."""
        return bool(self.cases) and not self.failures


def try_presets(folder: Path, cases: Path, names: Sequence[str]) -> list[Trial]:
    """Run the cases of these presets of a folder, or of all. Nothing is sent.

    Raises ConfigError with the mistakes in presets and case files.
    """
    if not os.path.lexists(folder):
        raise DeliverydError(f"no such folder: {folder}")
    if os.path.isfile(folder):  # noqa: PTH113  # Path.is_file raises PermissionError
        raise DeliverydError(f"{folder} is a file: name its folder, then the preset")
    there = preset_names(folder)
    if not there:
        raise DeliverydError(f"{folder}: there are no presets in it")
    problems = [f"{folder}: there is no preset {name}" for name in names if name not in there]
    if not names and cases.is_dir():
        problems += [f"{path}: there is no preset of this name" for path in sorted(cases.glob("*.toml"))
                     if path.stem not in there]  # fmt: skip
    opened: list[tuple[Preset, CaseFile | None]] = []
    for name in names or there:
        try:
            if name in there:
                problems += _name_problems(folder, name)
                opened.append(_opened(folder, cases, name))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return [
        Trial(preset.name, 0, (), cases / f"{preset.name}.toml") if file is None else _tried(preset, file)
        for preset, file in opened
    ]


def _name_problems(folder: Path, name: str) -> Iterator[str]:
    """Yield why a configuration can't use a preset of this folder, unless it is the package's."""
    if folder.resolve() != PACKAGED.resolve() and (problem := name_problem(name)) is not None:
        yield f"{folder / name}.toml: {problem}; rename the file"


def _opened(folder: Path, cases: Path, name: str) -> tuple[Preset, CaseFile | None]:
    path = folder / f"{name}.toml"
    keys = ConfigFile(path, {}, ()).tables.keys()
    if "table" not in keys and keys & {"given", "request", "receipt"}:
        raise ConfigError(
            [f"{path}: looks like a file of cases; it belongs in the folder cases beside the preset"]
        )
    preset = read_preset(path)
    check_tables(preset, ProviderTable)
    path = cases / f"{name}.toml"
    return preset, read_cases(path) if path.exists() else None


def _tried(preset: Preset, file: CaseFile) -> Trial:
    failures = []
    rows = set()
    cases = list(file.cases())
    for kind, number, case in cases:
        with TemporaryDirectory() as folder:
            try:
                result = run_case(preset, file, case, Path(folder))
            except ConfigError as error:
                result = CaseResult(error.problems)
            except DeliverydError as error:
                result = CaseResult([str(error)])
        rows.add(result.row)
        if result.differences:
            failures.append(DifferingCase(kind, number, case.says, result.differences, result.decided_by))
    numbers = range(1, len(preset.file.table.get("answers", ())) + 1) if file.answer else ()
    without = [number for number in numbers if number not in rows]
    return Trial(preset.name, len(cases), failures, None, without, list(_kinds_without_case(preset, file)))


def _kinds_without_case(preset: Preset, file: CaseFile) -> Iterator[str]:
    table = preset.file.table
    needed = ["request", "answer", *(kind for kind in ("lookup", "receipt") if kind in table)]
    if "signature" in table.get("receipt", ()):
        needed.append("signature")
    return (kind for kind in needed if not getattr(file, kind))


def trial_rows(trials: Iterable[Trial]) -> list[Mapping[str, object]]:
    """Return trials as JSON has them."""
    return [
        {
            "preset": trial.preset,
            "cases": trial.cases,
            "missing": None if trial.missing is None else str(trial.missing),
            "failures": [each._asdict() for each in trial.failures],
            "rows_without_case": list(trial.rows_without_case),
            "kinds_without_case": list(trial.kinds_without_case),
        }
        for trial in trials
    ]


def trials_lines(trials: Sequence[Trial]) -> Iterator[str]:
    """Return trials for people: each case that differs below its preset, the same differences once."""
    width = max((len(each.preset) for each in trials), default=0)
    for trial in trials:
        failed = len(trial.failures)
        count = f"{trial.cases} case{'' if trial.cases == 1 else 's'}"
        outcome = f"{count}, {failed} differ{'' if failed != 1 else 's'}"
        if not trial.cases:
            outcome = f"no cases; they belong in {trial.missing}" if trial.missing else "no cases in its file"
        yield f"{trial.preset:{width}}  {outcome}"
        if trial.cases and (without := "; ".join(_without_case(trial))):
            yield f"  {without}"
        shown: dict[tuple[str, ...], str] = {}
        for each in trial.failures:
            yield f"  {each.kind} {each.number}{': ' if each.says else ''}{each.says}"
            first = shown.setdefault(tuple(each.differences), f"{each.kind} {each.number}")
            if first != f"{each.kind} {each.number}":
                yield f"    as in {first}"
                continue
            yield from (f"    {difference}" for difference in each.differences)
            if each.decided_by is not None:
                yield f"    decided by {each.decided_by}"


def _without_case(trial: Trial) -> Iterator[str]:
    if trial.rows_without_case:
        yield f"rows of answers without a case: {', '.join(map(str, trial.rows_without_case))}"
    yield from (f"no [[{kind}]]" for kind in trial.kinds_without_case)
