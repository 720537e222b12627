"""`deliveryd tail`: what happens to messages, as it happens."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import ConfigOption, identifier
from deliveryd.commands.common.output import json_text, print_errors, standard_output
from deliveryd.commands.common.text_output import print_texts, width_of
from deliveryd.commands.watch.status import fitted
from deliveryd.commands.watch.watched import UrlOption, watched
from deliveryd.control.protocol import Portion, TailRequest
from deliveryd.errors import DeliverydError

_STYLES = {
    "sent": "green", "failed": "bold red", "refused": "red", "stopped": "red", "misconfigured": "bold red",
    "in_doubt": "yellow", "try_again": "yellow", "event_refused": "red", "dropped": "bold yellow",
    "waiting": "dim", "due": "dim", "taken": "dim",
}  # fmt: skip


def tail(
    *,
    config: ConfigOption = USUAL_CONFIG,
    url: UrlOption = None,
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="NAME", help="Only events of this channel.")
    ] = None,
    message: Annotated[
        int | None,
        typer.Option("--message", metavar="ID", parser=identifier, help="Only events of this message."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only attempts and messages that failed.")] = False,
    as_data: Annotated[bool, typer.Option("--json", help="Print JSON Lines, one event each.")] = False,
) -> None:
    """Print what happens to messages as it happens.

    Nothing of it is personal data. Ends with Ctrl-C. Exit status 1 if the worker ends before.
    """
    portions = watched(config, url, channel).tail(TailRequest(channel, message, failed))
    try:
        next(portions)
        if sys.stderr.isatty():
            print_errors("deliveryd: events follow; Ctrl-C ends")
        for portion in portions:
            if as_data:
                _print_data(portion)
            else:
                print_texts(_lines(portion))
    except KeyboardInterrupt:
        return
    raise DeliverydError("the worker has ended, or closed the connection because its events weren't read")


def _print_data(portion: Portion) -> None:
    with standard_output() as out:
        out.writelines(f"{json_text(event)}\n" for event in portion)


def _lines(portion: Portion) -> Iterator[Text]:
    width = width_of() if sys.stdout.isatty() else None
    for event in portion:
        line = _line(event)
        if width is not None and line.cell_len > width:
            cut = fitted(line.plain, width)
            line = Text(cut, spans=line.spans)
        yield line


def _line(event: Mapping[str, Any]) -> Text:
    name = str(event.get("event", ""))
    line = Text(no_wrap=True, end="")
    line.append(str(event.get("at", ""))[11:23], "dim")
    line.append(f"  {event.get('message', '-'):>8}  ")
    line.append(f"{name:<13}", _STYLES.get(name, ""))
    line.append(f"  {event.get('provider', ''):<16}  ")
    line.append(", ".join(_details(event)))
    line.rstrip()
    return line


def _details(event: Mapping[str, Any]) -> Iterator[str]:
    if event.get("number", 1) > 1:
        yield f"try {event['number']}"
    if "status" in event:
        yield str(event["status"])
    if "left_out" in event:
        yield f"{event['left_out']} events left out: they came faster than they were read"
    if "reason" in event:
        yield str(event["reason"])
