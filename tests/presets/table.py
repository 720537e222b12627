"""The table of presets and cases: how many rows each sheet has, and how many are cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from presets.cases import COUNTED, SheetCases


class Figures(NamedTuple):
    """What a preset's case file has; `failed` are the cases whose result differs."""

    preset: str
    rows: int
    cased: int
    skipped: int
    request: int
    answer: int
    lookup: int
    receipt: int
    signature: int
    failed: int


def figures_of(name: str, file: SheetCases, failed: int) -> Figures:
    """Count a case file."""
    in_count = {row for row in file.covered() if row.partition("/")[0] in COUNTED}
    skipped = {row for each in file.skipped for row in each.row}
    return Figures(
        name, sum(file.rows.values()), len(in_count), len(skipped), len(file.request), len(file.answer),
        len(file.lookup), len(file.receipt), len(file.signature), failed,
    )  # fmt: skip


def table_lines(figures: Sequence[Figures]) -> Iterator[str]:
    """Write the figures as a table with its sums."""
    numbers = [list(map(sum, zip(*(each[1:] for each in figures), strict=True)))] if figures else []
    cells = [
        ("preset", *Figures._fields[1:]),
        *(tuple(map(str, each)) for each in figures),
        *(("all", *map(str, sums)) for sums in numbers),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, *rest in cells:
        counts = (f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join((f"{name:{widths[0]}}", *counts))


def skipped_lines(name: str, file: SheetCases) -> Iterator[str]:
    """Write the rows that aren't cases, with their reasons."""
    for each in file.skipped:
        yield f"{name} {', '.join(each.row)}: {each.reason}"
