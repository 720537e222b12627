"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence


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
