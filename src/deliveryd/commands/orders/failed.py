"""`deliveryd failed`: list the messages that failed, and send them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, NamedTuple

import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import (
    AsData,
    ConfigOption,
    DryRun,
    Everything,
    WhyOption,
    message_number,
)
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.common.tables import AsLines, insist_on_one_form, print_records, print_table
from deliveryd.commands.messages.found import found_data
from deliveryd.commands.messages.selecting import (
    AcceptDuplicates,
    MessageIds,
    WantedChannel,
    WantedCustomer,
    WantedProvider,
    WantedReason,
    WantedSettings,
    WantedSince,
    WantedUntil,
    find_all,
    now,
    provider_name,
)
from deliveryd.commands.orders.bulk_orders import order_all, preview_order, report_result
from deliveryd.commands.orders.failures import (
    ID_HEADING,
    export_data,
    export_with_values,
    group_data,
    group_lines,
    grouped,
    id_row,
    show_lines,
)
from deliveryd.commands.orders.orders import insist_on_a_choice
from deliveryd.config import Config
from deliveryd.errors import DeliverydError
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action
from deliveryd.journal.selection import FoundMessage, Selection
from deliveryd.states import State

LIVES = 100
"""Messages whose histories are read in one transaction."""

_DOUBLES = "deliveryd: warning: whoever received one of these messages already might get it twice"

failed = CommandGroup(
    no_args_is_help=True,
    help="List the messages that failed, and send them again.\n\n"
    "A message that begins again is tried on every channel, under new idempotency keys and with the current"
    " templates, unless it has expired. A running worker acts at once.",
)


class _FailedFilter(NamedTuple):
    """Selects failed messages; None: any."""

    matching: str | None
    channel: str | None
    provider: str | None
    settings: int | None
    customer: int | None
    since: int | None
    until: int | None

    def selection(self, ids: Sequence[int] | None) -> Selection:
        """Return what is selected, of these ids if there are any."""
        return Selection(
            ids=tuple(dict.fromkeys(ids or ())), states=(State.FAILED,), customer=self.customer,
            channel=self.channel, provider=provider_name(self.provider), settings=self.settings,
            reason=self.matching, since=self.since, until=self.until,
        )  # fmt: skip


@failed.command("list")
def list_failed(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: MessageIds = None,
    matching: WantedReason = None,
    channel: WantedChannel = None,
    provider: WantedProvider = None,
    settings: WantedSettings = None,
    customer: WantedCustomer = None,
    since: WantedSince = None,
    until: WantedUntil = None,
    each: Annotated[bool, typer.Option("--ids", help="List each message, not groups of them.")] = False,
    as_data: AsData = False,
    as_lines: AsLines = False,
) -> None:
    """List failed messages in groups.

    Each is one reason, channel and settings id, with its number of messages, and when the first and the last
    of them failed."""
    insist_on_one_form(as_data=as_data, as_lines=as_lines)
    wanted = _FailedFilter(matching, channel, provider, settings, customer, since, until)
    selection = wanted.selection(ids)
    found = find_all(load_journal_as_owner(config), selection, beside_output=each)
    if each and not (as_data or as_lines):
        print_lines(f"{print_table(ID_HEADING, map(id_row, found), (0, 2)):,} failed")
    elif each:
        print_records(map(found_data, found), as_lines=as_lines)
    elif as_data or as_lines:
        print_records(map(group_data, grouped(found)), as_lines=as_lines)
    else:
        print_lines(*group_lines(grouped(found)))


@failed.command("show")
def show_failed(
    *,
    config: ConfigOption = USUAL_CONFIG,
    message_id: Annotated[
        int, typer.Argument(metavar="MESSAGE_ID", parser=message_number, help="The message's ID.")
    ],
    as_data: AsData = False,
) -> None:
    """Show why one message failed, and whether it can be retried.

    `explain` shows its whole history."""
    reader = open_reader(load_journal_as_owner(config).journal.place)
    page = reader.find(Selection(ids=(message_id,), states=(State.FAILED,)), None, 1)
    if not page.found:
        raise DeliverydError(
            f"message {message_id} hasn't failed, or isn't in the journal;"
            f" run: deliveryd explain {message_id}"
        )
    [found] = page.found
    obstacle = reader.obstacles(Action.BEGIN_ANEW, [message_id]).get(message_id)
    if as_data:
        print_json({**found_data(found), "retry_refused": obstacle})
    else:
        print_lines(*show_lines(found, obstacle))


@failed.command("retry")
def retry_failed(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: MessageIds = None,
    everything: Everything = False,
    matching: WantedReason = None,
    channel: WantedChannel = None,
    provider: WantedProvider = None,
    settings: WantedSettings = None,
    customer: WantedCustomer = None,
    since: WantedSince = None,
    until: WantedUntil = None,
    accept_duplicates: AcceptDuplicates = False,
    why: WhyOption = None,
    dry_run: DryRun = False,
    as_data: AsData = False,
) -> None:
    """Send failed messages again: they begin again.

    The service received `error` for them; it receives `sent` once they are sent, or `error` again. Messages
    that may have arrived are refused. Exit status 1: some were refused.
    """
    insist_on_a_choice(ids or (), everything)
    wanted = _FailedFilter(matching, channel, provider, settings, customer, since, until)
    if ids and any(given is not None for given in wanted):
        raise typer.BadParameter("options that select messages go with --all, not with IDs")
    selection = wanted.selection(ids)
    began = now()
    loaded = load_journal_as_owner(config)
    chosen = selection.ids or [found.id for found in find_all(loaded, selection, beside_output=False)]
    if accept_duplicates:
        print_errors(_DOUBLES)
    verb = Action.BEGIN_ANEW_ANYWAY if accept_duplicates else Action.BEGIN_ANEW
    if dry_run:
        report_result("would begin again", preview_order(loaded, verb, chosen), as_data=as_data)
    else:
        until = None if ids else selection.until or began
        result = order_all(loaded, verb, chosen, why, until)
        report_result("begun again", result, as_data=as_data)


@failed.command("export")
def export_failed(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: MessageIds = None,
    matching: WantedReason = None,
    channel: WantedChannel = None,
    provider: WantedProvider = None,
    settings: WantedSettings = None,
    customer: WantedCustomer = None,
    since: WantedSince = None,
    until: WantedUntil = None,
    with_variables: Annotated[
        bool,
        typer.Option(
            "--with-variables",
            help="Include the values of variables and the providers' own words, which may be personal data.",
        ),
    ] = False,
) -> None:
    """Print failed messages as JSON Lines.

    Each with its attempts, events, receipts and decisions."""
    wanted = _FailedFilter(matching, channel, provider, settings, customer, since, until)
    selection = wanted.selection(ids)
    loaded = load_journal_as_owner(config)
    found = find_all(loaded, selection, beside_output=True)
    print_records(_exported(loaded, found, with_variables), as_lines=True)


def _exported(
    config: Config, found: Iterator[FoundMessage], with_variables: bool
) -> Iterator[Mapping[str, object]]:
    reader = open_reader(config.journal.place)
    exported = export_with_values if with_variables else export_data
    for portion in iter(partial(_portion, found), []):
        lives = reader.lives([each.id for each in portion])
        yield from map(exported, portion, lives)


def _portion(found: Iterator[FoundMessage]) -> list[FoundMessage]:
    return list(islice(found, LIVES))
