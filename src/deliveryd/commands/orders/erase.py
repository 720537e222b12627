"""`deliveryd erase`: remove a person's data from the journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, DryRun, WhyOption, identifier
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.orders.orders import carry_out, name_of
from deliveryd.config import Config
from deliveryd.control.protocol import MOST_KEYS, ControlReply
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


def erase(
    *,
    config: ConfigOption = USUAL_CONFIG,
    customer: Annotated[
        int,
        typer.Option(
            "--customer", metavar="ID", parser=identifier, help="The customer's ID as it appears in messages."
        ),
    ],
    why: WhyOption = None,
    dry_run: DryRun = False,
    as_data: AsData = False,
) -> None:  # fmt: skip
    """Remove a customer's data from the journal. This can't be undone.

    Works with or without a running worker. Messages that haven't ended are refused and listed. The IDs and
    last events of erased messages stay, so that repeats aren't sent. Disk caches hold no customer data.

    Exit status: 0 no data is left, 1 some messages were refused.
    """
    loaded = load_journal_as_owner(config, "customers")
    held = open_reader(loaded.journal.place).personal_data(customer)
    wanted = {
        ItemKind.MALFORMED: held.malformed,  # before messages, since some of them are messages
        ItemKind.RECEIPT: [str(seq) for seq in held.receipts],
        ItemKind.REPORT: held.reports,
        ItemKind.MESSAGE: [str(id_) for id_ in held.messages],
    }
    answer = _preview(loaded, wanted) if dry_run else carry_out(loaded, Action.ERASE, wanted, why)
    if as_data:
        print_json(_as_json(customer, answer, dry_run))
    else:
        print_lines(*_as_lines(customer, answer, dry_run))
    holder = _holder(loaded)
    is_asked = not isinstance(loaded.customers.options, FileOptions | NoOptions)
    if holder is not None and is_asked and not dry_run:
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


def _preview(config: Config, wanted: Mapping[ItemKind, Sequence[str]]) -> ControlReply:
    """Return what an order would do and refuse now."""
    reader = open_reader(config.journal.place)
    ids = [int(key) for key in wanted[ItemKind.MESSAGE]]
    refused: dict[str, str] = {}
    for begin in range(0, len(ids), MOST_KEYS):
        found = reader.obstacles(Action.ERASE, ids[begin : begin + MOST_KEYS])
        refused |= {name_of(ItemKind.MESSAGE, id_): why for id_, why in found.items()}
    names = [name_of(kind, key) for kind, keys in wanted.items() for key in keys]
    return ControlReply(tuple(name for name in names if name not in refused), refused)


def _count(answer: ControlReply, kind: ItemKind) -> int:
    return sum(name.startswith(name_of(kind, "")) for name in answer.done)


def _as_lines(customer: int, answer: ControlReply, dry_run: bool) -> Iterator[str]:
    yield f"{'would erase' if dry_run else 'erased'} for customer {customer}: {len(answer.done)}"
    for kind, (words, _) in ERASED_KINDS.items():
        if number := _count(answer, kind):
            yield f"  {words}: {number:,}"
    if answer.skipped:
        yield f"refused: {len(answer.skipped)}; erase again when they have ended"
        yield from (f"  {name}: {reason}" for name, reason in answer.skipped.items())


def _as_json(customer: int, answer: ControlReply, dry_run: bool) -> Mapping[str, object]:
    erased = {field: _count(answer, kind) for kind, (_, field) in ERASED_KINDS.items()}
    return {"customer": customer, "dry_run": dry_run, "erased": erased, "refused": dict(answer.skipped)}
