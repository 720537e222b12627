"""The case files of the package's presets: as everyone's, and complete for the rows of a fact sheet."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Self

from pydantic import model_validator

from deliveryd.commands.providers.preset_cases import CaseFile

HERE = Path(__file__).parent
COUNTED = ("2", "3", "4")
"""The sections of a fact sheet whose rows must all be cases, or skipped with a reason."""


class SheetCases(CaseFile):
    """All cases of one preset of the package."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        rows = {
            f"{section}/{number}" for section, count in self.rows.items() for number in range(1, count + 1)
        }
        cased = self.covered()
        passed_over = {row for each in self.skipped for row in each.row}
        problems = [f"{kind} {number} names no row" for kind, number, case in self.cases() if not case.row]
        if not (self.sheet and self.request and self.answer):
            problems.append("needs sheet, request and answer")
        if tuple(sorted(self.rows)) != COUNTED:
            problems.append("rows needs the counts of sections 2, 3 and 4")
        if missing := sorted(rows - cased - passed_over):
            problems.append(f"neither a case nor skipped: {', '.join(missing)}")
        if both := sorted(cased & passed_over):
            problems.append(f"a case and skipped: {', '.join(both)}")
        if unknown := sorted(_counted(cased | passed_over) - rows):
            problems.append(f"the sheet has no row {', '.join(unknown)}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def covered(self) -> set[str]:
        """Return the rows that have a case."""
        return {row for _, _, case in self.cases() for row in case.row}


def _counted(rows: set[str]) -> set[str]:
    return {row for row in rows if row.partition("/")[0] in COUNTED}


def load_cases(path: Path) -> SheetCases:
    """Read a case file. Raises ValueError, also for a row of the sheet without a case."""
    with path.open("rb") as file:
        return SheetCases.model_validate(tomllib.load(file))


def case_files() -> dict[str, Path]:
    """Return the case files by the names of their presets."""
    return {path.stem: path for path in sorted(HERE.glob("*.toml"))}
