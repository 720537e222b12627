"""Tables of plain text, records, instants and lengths of time; printed as they come, with a progress line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Protocol, TextIO

import typer

from deliveryd.commands.common.output import json_text, standard_output
from deliveryd.commands.common.printable import printable
from deliveryd.model import SECOND, format_instant

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


MILLISECOND = 1000


def moment(instant: int) -> str:
    """Format an instant: UTC, milliseconds."""
    return f"{format_instant(instant)[:23]}Z"


def length(microseconds: int) -> str:
    """Format a duration in microseconds, in units that suit its length."""
    if microseconds < 60 * SECOND:
        return f"{microseconds // MILLISECOND / 1000:.3f} s"
    minutes, seconds = divmod(microseconds // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days} d ' if days else ''}{hours}:{minutes:02}:{seconds:02}"


def with_instants(record: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a record with its instants as in events: `at`, `since`, and those in `_at`."""
    return {
        name: format_instant(value)
        if isinstance(value, int) and (name in ("at", "since") or name.endswith("_at"))
        else value
        for name, value in record.items()
    }


QUIET = 1.0
"""Seconds before the line appears; most exports are finished by then."""

REDRAW_PAUSE = 0.2
_BLANK = "\r\x1b[K"


class ProgressText(Protocol):
    """How far something long came."""

    def text(self) -> str:
        """Return it as text."""


class ProgressLine:
    """Shows progress on `stream` if it is a terminal."""

    def __init__(
        self, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic, *, beside_output: bool
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._now = now
        self._due = now() + QUIET
        can_rewrite = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._wanted = can_rewrite and not beside_output
        self._shown = False

    def came_to(self, progress: ProgressText) -> None:
        """Show the progress, at a limited rate."""
        if self._wanted and self._now() >= self._due:
            self._due = self._now() + REDRAW_PAUSE
            self._shown = True
            self._stream.write(f"{_BLANK}{progress.text()} ...")
            self._stream.flush()

    def close(self) -> None:
        """Erase the line."""
        if self._shown:
            self._stream.write(_BLANK)
            self._stream.flush()
            self._shown = False
