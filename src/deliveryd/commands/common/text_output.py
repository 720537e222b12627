"""Styled lines on standard output: with colours on a terminal, plain through a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from deliveryd.commands.common.output import standard_output
from deliveryd.commands.common.printable import printable

PIPE_WIDTH = 120
"""Cells of a line that goes to no terminal, unless COLUMNS is set."""


class TextConsole(Console):
    """A console whose closed pipe the command handles; rich would exit the process."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError


def width_of() -> int:
    """Return the cells of a line of standard output."""
    with standard_output() as out:
        if not out.isatty() and not os.environ.get("COLUMNS", "").isdigit():
            return PIPE_WIDTH
        return Console(file=out).width


def print_texts(lines: Iterable[Text]) -> None:
    """Write lines to standard output."""
    with standard_output() as out:
        console = TextConsole(file=out, highlight=False, markup=False, emoji=False)
        for line in lines:
            console.print(safe(line), end="\n", soft_wrap=True)


def safe(line: Text) -> Text:
    """Return the line; if it holds characters that control a terminal, escaped and without styles."""
    return line if line.plain.isprintable() else Text(printable(line.plain))
