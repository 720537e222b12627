"""Tables of plain text, and records: printed as they come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated

import typer

from deliveryd.commands.common.output import json_text, standard_output
from deliveryd.commands.common.printable import printable

ROWS = 1000
"""Rows of a table whose columns are as wide as the widest of them; then the widths may grow."""

AsLines = Annotated[bool, typer.Option("--jsonl", help="Print JSON Lines, one object per line.")]


def table(
    heading: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> Iterator[str]:
    """Return a heading and rows as aligned lines; the columns `right` are aligned to the right."""
    widths = widths_of([heading, *rows])
    for row in (heading, *rows):
        yield aligned(row, widths, right)


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned(row: Sequence[str], widths: Sequence[int], right: Collection[int] = ()) -> str:
    """Return one line; the last column isn't padded."""
    cells = (
        cell.rjust(width) if place in right else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def insist_on_one_form(*, as_data: bool, as_lines: bool) -> None:
    """Raise BadParameter if both --json and --jsonl are given."""
    if as_data and as_lines:
        raise typer.BadParameter("give either --json or --jsonl")


def print_table(heading: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> int:
    """Print rows as they come, in portions that are aligned; return how many there were."""
    count = 0
    widths: Sequence[int] = [len(cell) for cell in heading]
    rest = iter(rows)
    with standard_output() as out:
        while portion := list(islice(rest, ROWS)):
            plain = [[printable(cell) for cell in row] for row in portion]
            widths = list(map(max, widths, widths_of(plain)))
            if not count:
                out.write(f"{aligned(heading, widths, right)}\n")
            for row in plain:
                out.write(f"{aligned(row, widths, right)}\n")
            count += len(portion)
    return count


def print_records(records: Iterable[Mapping[str, object]], *, as_lines: bool) -> None:
    """Print objects as they come: as JSON Lines, or as one JSON array."""
    begin, between, end = ("", "\n", "\n") if as_lines else ("[", ",\n ", "]\n")
    with standard_output() as out:
        count = 0
        for record in records:
            out.write(f"{between if count else begin}{json_text(record)}")
            count += 1
        if not as_lines:
            out.write(end if count else "[]\n")
        elif count:
            out.write(end)
