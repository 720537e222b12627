"""`deliveryd find` and `overdue`: find messages by what is known of them, or that were never confirmed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_errors, print_found, print_lines
from deliveryd.commands.common.printable import printable
from deliveryd.commands.common.tables import (
    AsLines,
    insist_on_one_form,
    moment,
    print_records,
    print_table,
    with_instants,
)
from deliveryd.commands.messages.selecting import (
    NO_CHANNEL,
    IdRange,
    MessageFilter,
    MessageIds,
    cells_of,
    find_all,
    found_data,
    id_range,
)
from deliveryd.journal.attention import OverdueMessage
from deliveryd.journal.opening import open_reader
from deliveryd.journal.selection import FoundMessage
from deliveryd.model import SECOND, channel_of
from deliveryd.options.suggestion import suggestion
from deliveryd.states import State

_STATES = {state.name.lower().replace("_", "-"): state for state in State}
_HEADING = ("ID", "STATE", "CHANNEL", "SETTINGS", "CUSTOMER", "TAKEN", "ENDED", "REASON")


def _state(text: str) -> State:
    if text not in _STATES:
        known = ", ".join(_STATES)
        raise typer.BadParameter(
            f"there is no state {text[:80]!a}{suggestion(text, list(_STATES))}; there are {known}"
        )
    return _STATES[text]


def find(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: MessageIds = None,
    state: Annotated[
        list[State] | None,
        typer.Option(
            parser=_state,
            metavar="STATE",
            help=f"Only messages in this state: {', '.join(_STATES)}; can be repeated.",
        ),
    ] = None,
    which: MessageFilter,
    within: Annotated[
        IdRange | None,
        typer.Option("--id-range", parser=id_range, metavar="FIRST..LAST", help="Only IDs in this range."),
    ] = None,
    as_data: AsData = False,
    as_lines: AsLines = False,
) -> None:
    """Find messages by what is known of them.

    Reads the journal in short portions, with or without a running worker. Messages pruned after
    journal.retention aren't found.
    """
    insist_on_one_form(as_data=as_data, as_lines=as_lines)
    first, last = within or IdRange()
    selection = which.selection(ids, state or ())._replace(first=first, last=last)
    found = find_all(load_journal_as_owner(config), selection, beside_output=True)
    if as_data or as_lines:
        print_records(map(found_data, found), as_lines=as_lines)
    else:
        print_lines(f"{print_table(_HEADING, map(_row, found), (0, 3, 4)):,} found")


def _row(found: FoundMessage) -> Sequence[str]:
    id_, channels, settings, reason = cells_of(found)
    return (
        id_,
        found.state.name.lower().replace("_", "-"),
        channels,
        settings,
        NO_CHANNEL if found.customer_id is None else str(found.customer_id),
        moment(found.taken_at),
        NO_CHANNEL if found.ended_at is None else moment(found.ended_at),
        reason,
    )


def overdue(*, config: ConfigOption = USUAL_CONFIG, as_data: AsData = False) -> None:
    """List sent messages that were never confirmed.

    They were sent longer than receipt_overdue ago, by providers with receipts, and are neither delivered
    nor failed by them. Read-only; works with or without a running worker.
    """
    loaded = load_journal_as_owner(config)
    if unread := set(loaded.channels.named) - loaded.channels.providers.keys():
        names = ", ".join(map(printable, sorted(unread)))
        print_errors(f"deliveryd: warning: a mistake hides when messages are overdue at {names}")
    now = time.time_ns() // 1000
    until = {name: now - int(each * SECOND) for name, each in loaded.channels.overdue.items()}
    found = open_reader(loaded.journal.place).overdue(until)
    print_found(found, as_data, _overdue_data, _overdue_lines)


def _overdue_lines(found: Sequence[OverdueMessage]) -> Iterator[str]:
    for each in found:
        yield f"{each.message_id}  {each.provider}, sent {moment(each.sent_at)}"
        yield f"    id at the provider: {each.provider_id or 'none'}"
    yield f"{len(found)} overdue"


def _overdue_data(each: OverdueMessage) -> Mapping[str, object]:
    return with_instants(each._asdict()) | {"channel": channel_of(each.provider)}
