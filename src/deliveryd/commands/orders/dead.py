"""`deliveryd dead`: list the dead letters, and retry or drop them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.moments import moment
from deliveryd.commands.common.options import (
    AsData,
    ConfigOption,
    DryRun,
    Everything,
    WhyOption,
    parse_instant_option,
)
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.orders.orders import (
    carry_out,
    expected_reply,
    insist_on_a_choice,
    name_of,
    report_reply,
)
from deliveryd.config import Config
from deliveryd.errors import DeliverydError
from deliveryd.journal.attention import DEAD_KINDS, DeadLetter
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import NOT_RETRIED, Action, ItemKind
from deliveryd.model import format_instant
from deliveryd.options.suggestion import suggestion

_KINDS = ", ".join(DEAD_KINDS)

dead = CommandGroup(
    no_args_is_help=True,
    help="List dead letters, and retry or drop them.\n\n"
    "Dead letters are status events that the service refused, messages whose dequeued event it refused,"
    " malformed queue elements, receipts that match no attempt, and reports that can't be read. A running"
    " worker acts at once.",
)


def _parsed(name: str) -> tuple[ItemKind, str]:
    kind, _, key = name.partition(":")
    if kind not in DEAD_KINDS or not key:
        raise typer.BadParameter(f"{name!r} isn't a name such as event:12; run: deliveryd dead list")
    return ItemKind(kind), key


def _parse_kind(text: str) -> ItemKind:
    if text not in DEAD_KINDS:
        raise typer.BadParameter(
            f"{text!r} isn't a kind of dead letter{suggestion(text, DEAD_KINDS)}; there are {_KINDS}"
        )
    return ItemKind(text)


class _Filter(NamedTuple):
    """Selects dead letters by kind, by when they were set aside, and by text in the reason."""

    kinds: Sequence[ItemKind]
    since: int | None
    reason: str

    def apply(self, config: Config) -> Sequence[DeadLetter]:
        return open_reader(config.journal.place).dead_letters(self.kinds, self.since or 0, self.reason)


NO_FILTER = _Filter(DEAD_KINDS, None, "")

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Names, such as event:12.")]
Kinds = Annotated[
    list[ItemKind] | None,
    typer.Option(
        "--kind",
        parser=_parse_kind,
        metavar="KIND",
        help=f"Only this kind: {_KINDS}; can be repeated.",
    ),
]
Since = Annotated[
    int | None,
    typer.Option(
        parser=parse_instant_option,
        metavar="TIME",
        help='Only those set aside since this instant, or within this time, such as "2h".',
    ),
]
DeadReason = Annotated[str, typer.Option(metavar="TEXT", help="Only those whose reason contains this text.")]


@dead.command("list")
def list_dead(
    *,
    config: ConfigOption = USUAL_CONFIG,
    kind: Kinds = None,
    since: Since = None,
    matching: DeadReason = "",
    as_data: AsData = False,
) -> None:
    """List the dead letters, oldest first."""
    found = _Filter(kind or DEAD_KINDS, since, matching).apply(load_journal_as_owner(config))
    if as_data:
        print_json([_as_data(each) for each in found])
    else:
        print_lines(*_lines(found))


@dead.command()
def show(
    *,
    config: ConfigOption = USUAL_CONFIG,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in the list, such as event:12.")],
    as_data: AsData = False,
) -> None:
    """Show one dead letter in full.

    That includes the event's JSON or the raw element, which may contain personal data.
    """
    record = open_reader(load_journal_as_owner(config).journal.place).dead_letter(*_parsed(name))
    if record is None:
        raise DeliverydError(f"{name} isn't a dead letter")
    written = {
        field: format_instant(value) if field.endswith("_at") and isinstance(value, int) else value
        for field, value in record.items()
    }
    if as_data:
        print_json(written)
    else:
        print_lines(*(f"{field:12} {value}" for field, value in written.items()))


@dead.command()
def retry(
    *,
    config: ConfigOption = USUAL_CONFIG,
    names: Names = None,
    everything: Everything = False,
    kind: Kinds = None,
    since: Since = None,
    matching: DeadReason = "",
    why: WhyOption = None,
    dry_run: DryRun = False,
    as_data: AsData = False,
) -> None:
    """Retry dead letters.

    Events are reported again, messages start over, receipts are matched again.
    """
    loaded = load_journal_as_owner(config)
    chosen = _choose(loaded, names or (), everything, _Filter(kind or _RETRIED, since, matching))
    _decide(loaded, Action.RETRY, chosen, why=why, dry_run=dry_run, as_data=as_data)


@dead.command()
def drop(
    *,
    config: ConfigOption = USUAL_CONFIG,
    names: Names = None,
    everything: Everything = False,
    kind: Kinds = None,
    since: Since = None,
    matching: DeadReason = "",
    why: WhyOption = None,
    dry_run: DryRun = False,
    as_data: AsData = False,
) -> None:
    """Drop dead letters, so that they are no longer listed or counted.

    They stay in the journal, marked as dropped.
    """
    loaded = load_journal_as_owner(config)
    chosen = _choose(loaded, names or (), everything, _Filter(kind or DEAD_KINDS, since, matching))
    _decide(loaded, Action.DROP, chosen, why=why, dry_run=dry_run, as_data=as_data)


_RETRIED = tuple(kind for kind in DEAD_KINDS if kind not in NOT_RETRIED)


def _choose(
    config: Config, names: Sequence[str], everything: bool, which: _Filter
) -> Mapping[ItemKind, Sequence[str]]:
    insist_on_a_choice(names, everything)
    found = (
        [_parsed(name) for name in dict.fromkeys(names)]
        if names
        else [(each.kind, each.key) for each in which.apply(config)]
    )
    by_kind = {kind: [key for other, key in found if other is kind] for kind in ItemKind}
    return {kind: keys for kind, keys in by_kind.items() if keys}


def _decide(
    config: Config,
    verb: Action,
    chosen: Mapping[ItemKind, Sequence[str]],
    *,
    why: str | None,
    dry_run: bool,
    as_data: bool,
) -> None:
    there = {name_of(each.kind, each.key) for each in NO_FILTER.apply(config)}
    refused = NOT_RETRIED if verb is Action.RETRY else {}
    answer = expected_reply(chosen, there, refused) if dry_run else carry_out(config, verb, chosen, why)
    report_reply(f"would {verb}" if dry_run else str(verb), answer, as_data=as_data)


def _lines(found: Sequence[DeadLetter]) -> Iterator[str]:
    for each in found:
        about = f" of message {each.message_id}" if each.message_id is not None else ""
        yield f"{name_of(each.kind, each.key)}  {each.what}{about}, {moment(each.at)}"
        yield f"    {each.reason}"
    yield f"{len(found)} set aside"


def _as_data(dead: DeadLetter) -> Mapping[str, object]:
    return {"name": name_of(dead.kind, dead.key)} | dead._asdict() | {"at": format_instant(dead.at)}
