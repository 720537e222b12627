"""`deliveryd paused`: list what is paused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.journal.opening import open_reader
from deliveryd.journal.pauses import PausedMessages, PauseKind
from deliveryd.journal.pauses import as_data as pause_data
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import format_instant

HEADINGS = ("paused", "messages", "since (UTC)", "until (UTC)", "by")


def paused(*, config: ConfigOption = USUAL_CONFIG, as_data: AsData = False) -> None:
    """List what is paused, since when and by whom.

    Also until when, why, and how many messages wait for it.
    A message waits for one pause at a time. Read-only; works with or without a running worker.
    """
    try:
        found = open_reader(load_journal_as_owner(config).journal.place).pauses()
    except JournalAbsent:
        found = ()
    if as_data:
        print_json([pause_data(each) for each in found])
    else:
        print_lines(*_lines(found))


def _lines(found: Sequence[PausedMessages]) -> Iterator[str]:
    if not found:
        yield "nothing is paused"
        return
    rows = [HEADINGS, *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row, each in zip(rows, (None, *found), strict=True):
        cells = [
            cell.rjust(width) if column == 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
        if each is not None and each.pause.reason is not None:
            yield f"    {each.pause.reason}"


def _row(each: PausedMessages) -> tuple[str, ...]:
    pause = each.pause
    messages = "" if pause.kind is PauseKind.INTAKE else f"{each.messages:,}"
    until = "resumed" if pause.until is None else _second(pause.until)
    return pause.name, messages, _second(pause.since), until, pause.who or ""


def _second(instant: int) -> str:
    return format_instant(instant)[:19].replace("T", " ")
