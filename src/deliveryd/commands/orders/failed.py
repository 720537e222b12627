"""`deliveryd failed`: list the messages that failed, and send them again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, NamedTuple

import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, Everything, Ordering, message_number
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.common.shared_journal import present
from deliveryd.commands.common.tables import (
    AsLines,
    insist_on_one_form,
    moment,
    print_records,
    print_table,
    table,
)
from deliveryd.commands.messages.explanation import life_data
from deliveryd.commands.messages.selecting import (
    NO_CHANNEL,
    AcceptDuplicates,
    MessageFilter,
    MessageIds,
    cells_of,
    channels_of,
    find_all,
    found_data,
)
from deliveryd.commands.orders.orders import insist_on_a_choice, order_messages
from deliveryd.config import Config
from deliveryd.errors import DeliverydError
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action
from deliveryd.journal.selection import NO_REASON, FoundMessage, Selection
from deliveryd.journal.sql.history import Life, without_values
from deliveryd.model import format_instant
from deliveryd.states import State

LIVES = 100
"""Messages whose histories are read in one transaction."""

MOST_GROUPS = 10_000
"""Groups that are kept apart; what comes later counts with "other reasons"."""

_SHOWN_IDS = 5
_OTHER = "other reasons"
_ID_HEADING = ("ID", "CHANNEL", "SETTINGS", "FAILED", "REASON")
_DOUBLES = "deliveryd: warning: whoever received one of these messages already might get it twice"

failed = CommandGroup(
    no_args_is_help=True,
    help="List the messages that failed, and send them again.\n\n"
    "A message that begins again is tried on every channel, under new idempotency keys and with the current"
    " templates, unless it has expired. A running worker acts at once.",
)


@failed.command("list")
def list_failed(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: MessageIds = None,
    which: MessageFilter,
    each: Annotated[bool, typer.Option("--ids", help="List each message, not groups of them.")] = False,
    as_data: AsData = False,
    as_lines: AsLines = False,
) -> None:
    """List failed messages in groups.

    Each is one reason, channel and settings id, with its number of messages, and when the first and the last
    of them failed."""
    insist_on_one_form(as_data=as_data, as_lines=as_lines)
    found = find_all(load_journal_as_owner(config), which.selection(ids, [State.FAILED]), beside_output=each)
    if each and not (as_data or as_lines):
        print_lines(f"{print_table(_ID_HEADING, map(_row, found), (0, 2)):,} failed")
    elif each:
        print_records(map(found_data, found), as_lines=as_lines)
    elif as_data or as_lines:
        print_records(map(_group_data, grouped(found)), as_lines=as_lines)
    else:
        print_lines(*_group_lines(grouped(found)))


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
        print_lines(*_show_lines(found, obstacle))


@failed.command("retry")
def retry_failed(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: MessageIds = None,
    everything: Everything = False,
    which: MessageFilter,
    accept_duplicates: AcceptDuplicates = False,
    how: Ordering,
) -> None:
    """Send failed messages again: they begin again.

    The service received `error` for them; it receives `sent` once they are sent, or `error` again. Messages
    that may have arrived are refused. Exit status 1: some were refused.
    """
    insist_on_a_choice(ids or (), everything)
    if ids and any(given is not None for given in which):
        raise typer.BadParameter("options that select messages go with --all, not with IDs")
    selection = which.selection(ids, [State.FAILED])
    began = present()
    loaded = load_journal_as_owner(config)
    chosen = selection.ids or [found.id for found in find_all(loaded, selection, beside_output=False)]
    if accept_duplicates:
        print_errors(_DOUBLES)
    verb = Action.BEGIN_ANEW_ANYWAY if accept_duplicates else Action.BEGIN_ANEW
    order_messages(
        loaded,
        verb,
        chosen,
        how,
        ("would begin again", "begun again"),
        until=None if ids else selection.until or began,
    )


@failed.command("export")
def export_failed(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: MessageIds = None,
    which: MessageFilter,
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
    loaded = load_journal_as_owner(config)
    found = find_all(loaded, which.selection(ids, [State.FAILED]), beside_output=True)
    print_records(_exported(loaded, found, with_variables), as_lines=True)


def _exported(
    config: Config, found: Iterator[FoundMessage], with_variables: bool
) -> Iterator[Mapping[str, object]]:
    reader = open_reader(config.journal.place)
    while portion := list(islice(found, LIVES)):
        lives = reader.lives([each.id for each in portion])
        for each, life in zip(portion, lives, strict=True):
            yield {**found_data(each), **(_life(life) if with_variables else _anonymous(life))}


def _anonymous(life: Life) -> dict[str, list[dict[str, object]]]:
    """Return all of a message's history but what could identify a customer."""
    data = _life(without_values(life))
    for attempt in data["attempts"]:
        attempt["words"] = None
    return data


def _life(life: Life) -> dict[str, list[dict[str, object]]]:
    data = json.loads(json.dumps(life_data(life)))
    variables = (data["message"] or {}).get("variables")
    parts = ("attempts", "events", "receipts", "malformed", "decisions")
    return {"variables": variables, **{name: data[name] for name in parts}}


class FailedKind(NamedTuple):
    """What the messages of a group have in common; instants and long numbers in a reason count as equal."""

    channels: tuple[str, ...]
    settings_id: int | None
    reason: str


class FailureGroup(NamedTuple):
    """Failed messages of a kind: how many, when the first and the last failed, and some of their ids."""

    kind: FailedKind
    messages: int
    first_at: int
    last_at: int
    ids: tuple[int, ...]


def grouped(found: Iterable[FoundMessage]) -> list[FailureGroup]:
    """Group failed messages by reason, channels and settings, the largest group first."""
    groups: dict[FailedKind, FailureGroup] = {}
    for each in found:
        kind = FailedKind(channels_of(each), each.settings_id, each.failure)
        if kind not in groups and len(groups) >= MOST_GROUPS:
            kind = FailedKind((), None, _OTHER)
        at = each.ended_at or each.taken_at
        known = groups.get(kind) or FailureGroup(kind, 0, at, at, ())
        groups[kind] = FailureGroup(
            kind,
            known.messages + 1,
            min(known.first_at, at),
            max(known.last_at, at),
            known.ids if len(known.ids) == _SHOWN_IDS else (*known.ids, each.told_as),
        )
    return sorted(groups.values(), key=lambda group: (-group.messages, group.first_at))


def _group_lines(groups: Sequence[FailureGroup]) -> Iterator[str]:
    """Return the groups as a table."""
    if groups:
        heading = ("COUNT", "CHANNEL", "SETTINGS", "FIRST", "LAST", "REASON")
        rows = [
            (
                f"{group.messages:,}",
                ", ".join(group.kind.channels) or NO_CHANNEL,
                NO_CHANNEL if group.kind.settings_id is None else str(group.kind.settings_id),
                moment(group.first_at),
                moment(group.last_at),
                group.kind.reason,
            )
            for group in groups
        ]
        yield from table(heading, rows, right=(0, 2))
    count = sum(group.messages for group in groups)
    yield f"{count:,} failed"


def _group_data(group: FailureGroup) -> Mapping[str, object]:
    """Return a group as JSON."""
    return {
        "count": group.messages,
        "reason": group.kind.reason,
        "channels": list(group.kind.channels),
        "settings": group.kind.settings_id,
        "first_at": format_instant(group.first_at),
        "last_at": format_instant(group.last_at),
        "ids": list(group.ids),
    }


def _row(found: FoundMessage) -> Sequence[str]:
    id_, channels, settings, reason = cells_of(found)
    return id_, channels, settings, moment(found.ended_at or found.taken_at), reason


def _show_lines(found: FoundMessage, obstacle: str | None) -> Iterator[str]:
    """Return one failed message, and whether it can be retried."""
    yield f"message {found.told_as}: failed {moment(found.ended_at or found.taken_at)}"
    yield f"    {found.reason or NO_REASON}"
    rows = {
        "settings": found.settings_id,
        "customer": found.customer_id,
        "channels": ", ".join(channels_of(found)) or "none was tried",
        "taken": moment(found.taken_at),
        "begun": "once" if found.generation == 1 else f"{found.generation} times",
        "retry": "possible" if obstacle is None else f"refused: {obstacle}",
    }
    for name, value in rows.items():
        yield f"  {name:10} {value}"
