"""Tables that fit the width of a terminal: less important columns give way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

GAP = 2
_LEAST = 8
"""Cells that the first column keeps."""


class Cell(NamedTuple):
    """A text and its style."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """A column. Those with the highest `rank` give way first; 0 stays."""

    title: str
    cells: Sequence[Cell]
    rank: int = 0
    is_number: bool = False

    @property
    def width(self) -> int:
        """Return the cells that its widest text needs."""
        return max(cell_len(self.title), *(cell_len(cell.text) for cell in self.cells), 1)


def fitted_table(columns: Sequence[Column], width: int) -> list[Text]:
    """Lay out a table of at most `width` cells: its head, and a line for each row."""
    shown = list(columns)
    while _total(shown) > width and (ranked := [each for each in shown if each.rank]):
        shown.remove(max(ranked, key=lambda column: column.rank))
    widths = [column.width for column in shown]
    widths[0] = max(widths[0] - max(_total(shown) - width, 0), min(_LEAST, widths[0]))
    head = [Cell(column.title, "dim") for column in shown]
    rows = [head, *(list(row) for row in zip(*(column.cells for column in shown), strict=True))]
    return [_line(shown, widths, row, width) for row in rows]


def fitted(text: str, width: int) -> str:
    """Return a text that takes at most `width` cells, with an ellipsis for what is cut off."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def _total(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[Cell], width: int) -> Text:
    line = Text(no_wrap=True, end="")
    for column, cells, cell in zip(columns, widths, row, strict=True):
        text = fitted(cell.text, cells)
        padding = " " * (cells - cell_len(text))
        line.append(" " * GAP if line.plain else "")
        line.append(padding + text if column.is_number else text + padding, cell.style or None)
    line.rstrip()
    line.truncate(width, overflow="ellipsis")
    return line
