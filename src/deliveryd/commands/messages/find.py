"""`deliveryd find`: find messages by what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.moments import moment
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_lines
from deliveryd.commands.common.tables import AsLines, insist_on_one_form, print_records, print_table
from deliveryd.commands.messages.found import NO_CHANNEL, channels_of, found_data
from deliveryd.commands.messages.selecting import (
    IdRange,
    MessageIds,
    WantedChannel,
    WantedCustomer,
    WantedProvider,
    WantedReason,
    WantedSettings,
    WantedSince,
    WantedUntil,
    find_all,
    id_range,
    provider_name,
)
from deliveryd.journal.selection import FoundMessage, Selection
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
    customer: WantedCustomer = None,
    settings: WantedSettings = None,
    channel: WantedChannel = None,
    provider: WantedProvider = None,
    matching: WantedReason = None,
    since: WantedSince = None,
    until: WantedUntil = None,
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
    selection = Selection(
        tuple(dict.fromkeys(ids or ())), tuple(state or ()), customer, channel, provider_name(provider),
        settings, matching, since, until, first, last,
    )  # fmt: skip
    found = find_all(load_journal_as_owner(config), selection, beside_output=True)
    if as_data or as_lines:
        print_records(map(found_data, found), as_lines=as_lines)
    else:
        print_lines(f"{print_table(_HEADING, map(_row, found), (0, 3, 4)):,} found")


def _row(found: FoundMessage) -> Sequence[str]:
    return (
        str(found.id),
        found.state.name.lower().replace("_", "-"),
        ", ".join(channels_of(found)) or NO_CHANNEL,
        NO_CHANNEL if found.settings_id is None else str(found.settings_id),
        NO_CHANNEL if found.customer_id is None else str(found.customer_id),
        moment(found.taken_at),
        NO_CHANNEL if found.ended_at is None else moment(found.ended_at),
        found.reason or "",
    )
