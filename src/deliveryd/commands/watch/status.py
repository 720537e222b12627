"""`deliveryd status`: the state of a running worker on one screen; and the lines that `top` shows of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import NamedTuple

import typer
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from deliveryd.admin.sections import (
    Cell,
    Fact,
    NoticeLevel,
    ProviderRow,
    channel_rows,
    facts_of,
    headline,
    left_out_of_paused,
    notices_of,
    pause_notice,
    process_of,
    rates_of,
    reload_of,
    time_of_day,
    warnings_of,
)
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json
from deliveryd.commands.common.text_output import print_texts, width_of
from deliveryd.commands.watch.watched import UrlOption, read_overview, watched
from deliveryd.telemetry.overview import Overview

WIDE = 76
"""Cells from which rates and facts stand side by side."""

GAP = 2
_LEAST = 8
"""Cells that the first column keeps."""

_RATES = 40
_WARNINGS = 3
_STYLES: Mapping[NoticeLevel | None, str] = {
    "good": "green", "fair": "yellow", "bad": "bold red", "held": "yellow", "off": "dim", None: ""
}  # fmt: skip
_RANKS = {
    "state": 0, "waiting": 0, "under way": 3, "rate": 1, "limit": 6, "in doubt": 2, "failed": 5,
    "accepted": 7, "receipts": 8, "last failure": 4,
}  # fmt: skip
"""The columns of providers; those with the highest number give way first in a narrow terminal."""

_TEXTS = ("state", "receipts", "last failure")
_LONGEST_TEXT = 40


def status(*, config: ConfigOption = USUAL_CONFIG, url: UrlOption = None, as_data: AsData = False) -> None:
    """Show the state of the running worker on one screen.

    Exit status: 0 it takes messages, 1 it doesn't, or no worker is running.
    """
    found = watched(config, url).status()
    overview = read_overview(found)
    if as_data:
        print_json(found)
    else:
        print_texts(status_lines(overview, width_of()))
    if not overview.ready:
        raise typer.Exit(FAILED)


def status_lines(overview: Overview, width: int) -> list[Text]:
    """Everything on one screen."""
    sections = {
        "needs attention": notice_lines(overview, width),
        "paused": paused_lines(overview, width),
        "last warnings": warning_lines(overview, width)[:_WARNINGS],
        "configuration": reload_lines(overview, width),
    }
    return [
        *head(overview, width),
        *numbers(overview, width),
        Text(""),
        *fitted_table(provider_columns(provider_rows(overview), "provider"), width),
        *(
            line
            for title, lines in sections.items()
            if lines
            for line in (Text(""), text_line(title, width, "dim"), *lines)
        ),
    ]


def head(overview: Overview, width: int) -> list[Text]:
    """How the worker is, in a word and a sentence."""
    word, level, reason = headline(overview)
    program, process = process_of(overview)
    line = Text.assemble((word.upper(), f"bold {_STYLES[level]}"), f"  {program}", no_wrap=True, end="")
    if line.cell_len + len(process) + 2 <= width:
        line.append(process.rjust(width - line.cell_len), "dim")
    line.truncate(width, overflow="ellipsis")
    return [line, *_folded(reason, width)]


def numbers(overview: Overview, width: int) -> list[Text]:
    """Rates beside facts, or below each other where that is too wide."""
    names, now, minute = (list(map(Cell, column)) for column in zip(*rates_of(overview), strict=True))
    columns = [
        Column("messages", names), Column("last 10 s", now, 0, True), Column("last 60 s", minute, 1, True)
    ]  # fmt: skip
    rates = fitted_table(columns, min(width, _RATES))
    facts = list(facts_of(overview))
    if width < WIDE:
        return [Text(""), *rates, Text(""), *(text_line(_fact(fact, width), width) for fact in facts)]
    lines = [Text("")]
    for rate, fact in zip_longest(rates, facts, fillvalue=None):
        line = rate.copy() if rate is not None else Text(no_wrap=True, end="")
        if fact is not None:
            line.append(" " * (_RATES - line.cell_len) + _fact(fact, width - _RATES))
        lines.append(line)
    return lines


def _fact(fact: Fact, width: int) -> str:
    """Its name, number and unit, and as many remarks as there is room for."""
    text = f"{fact.name:<11}{f'{fact.number} {fact.unit}'.strip()}"
    for aside in fact.asides:
        if len(text) + len(aside) + 2 <= width:
            text += f", {aside}"
    return fitted(text, width)


def provider_rows(overview: Overview) -> list[ProviderRow]:
    """The providers of all channels."""
    return [row for _channel, rows in channel_rows(overview) for row in rows]


def provider_columns(rows: Sequence[ProviderRow], title: str) -> list[Column]:
    """The table of providers or channels."""
    cells = [row.cells() for row in rows]
    columns = [Column(title, [Cell(row.name) for row in rows])]
    has_limit = any(each["limit"].text for each in cells)
    for name, rank in _RANKS.items():
        if name == "limit" and not has_limit:
            continue
        shown = [each[name]._replace(text=fitted(each[name].text, _LONGEST_TEXT)) for each in cells]
        columns.append(Column(name, shown, rank, name not in _TEXTS))
    return columns


def notice_lines(overview: Overview, width: int) -> list[Text]:
    """What needs attention, the most urgent first; long sentences take several lines."""
    return [
        line
        for notice in notices_of(overview)
        for line in _wrapped(f"{notice.about}: {notice.text}", width, notice.level)
    ]


def paused_lines(overview: Overview, width: int) -> list[Text]:
    """What is paused, since when and why."""
    texts = []
    for notice in (pause_notice(each, overview.at) for each in overview.paused):
        until = f", until {time_of_day(notice.at, overview.at)}" if notice.at else ""
        texts.append(f"{notice.about}, {notice.text}{until}")
    texts += filter(None, [left_out_of_paused(overview)])
    return [line for text in texts for line in _wrapped(text, width, "held")]


def warning_lines(overview: Overview, width: int) -> list[Text]:
    """The last lines of the log from warning on, the latest first."""
    return [
        text_line(f"{(each.at or '')[11:19]} {each.about} {each.text}", width, "red" * (each.level == "bad"))
        for each in warnings_of(overview)
    ]


def reload_lines(overview: Overview, width: int) -> list[Text]:
    """The last reload of the configuration."""
    text, items = reload_of(overview)
    return [*_folded(text, width), *(line for item in items for line in _wrapped(item, width, "fair"))]


def text_line(text: str, width: int, style: str = "") -> Text:
    """Return a text as one line of at most `width` cells."""
    return Text(fitted(text, width), style, no_wrap=True, end="")


def _wrapped(text: str, width: int, level: NoticeLevel) -> list[Text]:
    """Return the words of a text in lines, after a mark of the level."""
    lines: list[Text] = []
    for index, line in enumerate(wrap(text, max(width - 2, 1)) or [""]):
        mark = ("! " if index == 0 else "  ", _STYLES[level])
        lines.append(Text.assemble(mark, line, no_wrap=True, end=""))
        lines[-1].truncate(width)
    return lines


def _folded(text: str, width: int) -> list[Text]:
    return [Text(line, no_wrap=True, end="") for line in wrap(text, max(width, 1))]


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
    head = [Cell(column.title, "off") for column in shown]
    rows = [head, *(list(row) for row in zip(*(column.cells for column in shown), strict=True))]
    return [_row_line(shown, widths, row, width) for row in rows]


def fitted(text: str, width: int) -> str:
    """Return a text that takes at most `width` cells, with an ellipsis for what is cut off."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def _total(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _row_line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[Cell], width: int) -> Text:
    line = Text(no_wrap=True, end="")
    for column, cells, cell in zip(columns, widths, row, strict=True):
        text = fitted(cell.text, cells)
        padding = " " * (cells - cell_len(text))
        line.append(" " * GAP if line.plain else "")
        line.append(padding + text if column.is_number else text + padding, _STYLES[cell.level] or None)
    line.rstrip()
    line.truncate(width, overflow="ellipsis")
    return line
