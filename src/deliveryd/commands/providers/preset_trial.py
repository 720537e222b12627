"""Runs the cases of the presets of a folder offline, for `deliveryd presets test`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from deliveryd.channels.options import ProviderTable
from deliveryd.channels.presets.catalogue import (
    PACKAGED,
    Preset,
    check_tables,
    name_problem,
    preset_names,
    read_preset,
)
from deliveryd.commands.providers.preset_cases import CaseFile, read_cases
from deliveryd.commands.providers.preset_running import Outcome, run_case
from deliveryd.errors import ConfigError, DeliverydError
from deliveryd.options.file import ConfigFile


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
                outcome = run_case(preset, file, case, Path(folder))
            except ConfigError as error:
                outcome = Outcome(error.problems)
            except DeliverydError as error:
                outcome = Outcome([str(error)])
        rows.add(outcome.row)
        if outcome.differences:
            failures.append(DifferingCase(kind, number, case.says, outcome.differences, outcome.decided_by))
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
        told = f"{count}, {failed} differ{'' if failed != 1 else 's'}"
        if not trial.cases:
            told = f"no cases; they belong in {trial.missing}" if trial.missing else "no cases in its file"
        yield f"{trial.preset:{width}}  {told}"
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
