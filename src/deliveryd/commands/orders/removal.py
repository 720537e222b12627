"""`deliveryd erase` and `forget`: remove a person's data, or messages that are to be new again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.options import ConfigOption, Ordering, identifier, message_number
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.messages.selecting import AcceptDuplicates
from deliveryd.commands.orders.orders import (
    Wanted,
    carry_out,
    name_of,
    obstacles,
    order_messages,
    skipped_lines,
)
from deliveryd.config import Config
from deliveryd.control.protocol import ControlReply
from deliveryd.directory.registry import FileOptions, NoOptions
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.place import JournalFile
from deliveryd.journal.sqlite.lock import lock_owner
from deliveryd.model import format_duration

ERASED_KINDS: Mapping[ItemKind, tuple[str, str]] = {
    ItemKind.MESSAGE: ("messages, with their variables, attempts, events and receipts", "messages"),
    ItemKind.MALFORMED: ("malformed elements of the queue", "malformed"),
    ItemKind.RECEIPT: ("receipts that matched nothing", "receipts"),
    ItemKind.REPORT: ("reports that can't be read", "reports"),
}
"""The kinds of data that are removed: as text, and as a JSON field."""

_DOUBLES = "deliveryd: warning: if the queue gives one of these messages again, it may be received twice"


def erase(
    *,
    config: ConfigOption = USUAL_CONFIG,
    customer: Annotated[
        int,
        typer.Option(
            "--customer", metavar="ID", parser=identifier, help="The customer's ID as it appears in messages."
        ),
    ],
    how: Ordering,
) -> None:
    """Remove a customer's data from the journal. This can't be undone.

    Works with or without a running worker. Messages that haven't ended are refused and listed. The IDs and
    last events of erased messages stay, so that repeats aren't sent. Disk caches hold no customer data.

    Exit status: 0 no data is left, 1 some messages were refused.
    """
    loaded = load_journal_as_owner(config)
    held = open_reader(loaded.journal.place).personal_data(customer)
    wanted = {
        ItemKind.MALFORMED: held.malformed,  # before messages, since some of them are messages
        ItemKind.RECEIPT: [str(seq) for seq in held.receipts],
        ItemKind.REPORT: held.reports,
        ItemKind.MESSAGE: [str(id_) for id_ in held.messages],
    }
    answer = _preview(loaded, wanted) if how.dry_run else carry_out(loaded, Action.ERASE, wanted, how.why)
    if how.as_data:
        print_json(_as_json(customer, answer, how.dry_run))
    else:
        print_lines(*_as_lines(customer, answer, how.dry_run))
    holder = _holder(loaded)
    is_asked = not isinstance(loaded.customers.options, FileOptions | NoOptions)
    if holder is not None and is_asked and not how.dry_run:
        ttl = format_duration(loaded.customers.terms.cache_ttl)
        note = f"may keep the customer's directory entry in memory, for {ttl} at most"
        print_errors(f"deliveryd: {holder} {note}")
    if answer.skipped:
        raise typer.Exit(FAILED)


def _holder(config: Config) -> str | None:
    """Name who may have data of the customer; None: no running worker."""
    place = config.journal.place
    if not isinstance(place, JournalFile):
        return "each worker of the journal"
    holder = lock_owner(place.path)
    return None if holder is None else f"process {holder}"


def _preview(config: Config, wanted: Wanted) -> ControlReply:
    """Return what an order would do and refuse now."""
    found = obstacles(config, Action.ERASE, list(map(int, wanted[ItemKind.MESSAGE])))
    refused = {name_of(ItemKind.MESSAGE, id_): why for id_, why in found.items()}
    names = [name_of(kind, key) for kind, keys in wanted.items() for key in keys]
    return ControlReply(tuple(name for name in names if name not in refused), refused)


def _count(answer: ControlReply, kind: ItemKind) -> int:
    return sum(name.startswith(name_of(kind, "")) for name in answer.done)


def _as_lines(customer: int, answer: ControlReply, dry_run: bool) -> Iterator[str]:
    yield f"{'would erase' if dry_run else 'erased'} for customer {customer}: {len(answer.done)}"
    for kind, (words, _) in ERASED_KINDS.items():
        if number := _count(answer, kind):
            yield f"  {words}: {number:,}"
    yield from skipped_lines("refused", answer.skipped, "; erase again when they have ended")


def _as_json(customer: int, answer: ControlReply, dry_run: bool) -> Mapping[str, object]:
    erased = {field: _count(answer, kind) for kind, (_, field) in ERASED_KINDS.items()}
    return {"customer": customer, "dry_run": dry_run, "erased": erased, "refused": dict(answer.skipped)}


def forget(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: Annotated[
        list[int], typer.Argument(metavar="MESSAGE_ID", parser=message_number, help="IDs of messages.")
    ],
    accept_duplicates: AcceptDuplicates = False,
    how: Ordering,
) -> None:
    """Have messages taken as new if the queue gives them again.

    They are deleted from the journal. Only the number of times that they began stays, so that no idempotency
    key is used twice. Messages that haven't ended are refused, and so are messages that were sent or may have
    arrived. Exit status 1: some were refused.
    """
    loaded = load_journal_as_owner(config)
    chosen = list(dict.fromkeys(ids))
    if accept_duplicates:
        print_errors(_DOUBLES)
    verb = Action.FORGET_ANYWAY if accept_duplicates else Action.FORGET
    order_messages(loaded, verb, chosen, how, ("would forget", "forgotten"))
