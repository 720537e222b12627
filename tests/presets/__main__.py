"""Runs all cases of the presets and prints the table: python -m presets [NAME ...]"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import anyio

from deliveryd.channels.presets.catalogue import Catalogue
from presets.cases import SheetCases, case_files, load_cases
from presets.running import differences, labelled
from presets.table import Figures, figures_of, skipped_lines, table_lines
from support.output import say


async def failures(name: str, file: SheetCases) -> list[str]:
    """Run the cases of one preset; return a line for each that failed."""
    preset = Catalogue().find(name)
    if preset is None:
        return [f"{name}: there is no such preset"]
    found = []
    for label, case in labelled(file):
        with tempfile.TemporaryDirectory() as folder:
            try:
                told = await differences(preset, file, case, Path(folder))
            except Exception as error:  # a case that can't be run has failed; the others go on
                told = [_reason(error)]
        if told:
            found.append(f"{name} {label}: {'; '.join(told)}")
    return found


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error).partition('For further information')[0]}"


def main(names: list[str]) -> int:
    """Run the cases of these presets, or of all; return the exit status."""
    figures: list[Figures] = []
    failed: list[str] = []
    skipped: list[str] = []
    for name, path in case_files().items():
        if names and name not in names:
            continue
        file = load_cases(path)
        told = anyio.run(failures, name, file)
        failed += told
        skipped += skipped_lines(name, file)
        figures.append(figures_of(name, file, len(told)))
    say("\n".join([*table_lines(figures), "", "skipped:", *skipped]))
    if failed:
        say("\n".join(["", "failed:", *failed]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
