"""Customer data as tables, one per group, with names from the configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from deliveryd.commands.common.output import json_text
from deliveryd.commands.common.printable import printable
from deliveryd.commands.common.text_output import TextConsole
from deliveryd.commands.customers.customer_export import Row

NAMES = ("marketName", "name", "title", "legalName")
"""Fields of a configuration that may name an entity; only merchants' are known (interface 2.5)."""

LONGEST_CELL = 60


class TableSheet:
    """Tables, each printed when its group is complete or the export ends."""

    def __init__(self, out: TextIO) -> None:
        self._console = TextConsole(file=out, markup=False, highlight=False, emoji=False)
        self._group: str | None = None
        self._rows: list[Row] = []

    def begin(self, group: str) -> None:
        """Print the previous group, and begin a table."""
        self._print()
        self._group = group

    def add(self, rows: Sequence[Row]) -> None:
        """Collect rows; column widths are only known at the end."""
        self._rows += rows

    def close(self) -> None:
        """Print the last table."""
        self._print()

    def _print(self) -> None:
        if self._group is not None:
            self._console.print(_heading(self._group, len(self._rows)))
            if self._rows:
                self._console.print(_table(self._rows))
        self._group, self._rows = None, []


def _heading(group: str, count: int) -> Text:
    return Text.assemble((group, "bold"), f"  {count:,}" if count else "  none")


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("id", justify="right", no_wrap=True)
    table.add_column("name", ratio=2, overflow="fold")
    with_category = any(_text(row, "category") for row in rows)
    if with_category:
        table.add_column("category", ratio=1, overflow="fold")
    with_fields = any(row.entity.fields for row in rows)
    if with_fields:
        table.add_column("for this customer", ratio=3, overflow="fold")
    for row in rows:
        cells = [Text(str(row.entity.id)), _name(row)]
        cells += [Text(_text(row, "category"))] if with_category else []
        cells += [_fields(row.entity.fields)] if with_fields else []
        table.add_row(*cells)
    return table


def _name(row: Row) -> Text:
    if row.problem is not None:
        return Text(f"not known: {printable(row.problem)}", style="red")
    return Text(next((text for field in NAMES if (text := _text(row, field))), "-"))


def _text(row: Row, field: str) -> str:
    value = (row.config or {}).get(field)
    return printable(value).strip() if isinstance(value, str) else ""


def _fields(fields: Mapping[str, Any]) -> Text:
    shown = Text()
    for name, value in fields.items():
        shown.append(", " if shown else "")
        shown.append(f"{_short(name)} ", style="dim")
        shown.append(_short(value if isinstance(value, str) else json_text(value)))
    return shown


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"
