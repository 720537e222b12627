"""`deliveryd dead`: list the dead letters, and retry or drop them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import (
    AsData,
    ConfigOption,
    Everything,
    Ordering,
    parse_instant_option,
)
from deliveryd.commands.common.output import print_found, print_json, print_lines
from deliveryd.commands.common.tables import moment, with_instants
from deliveryd.commands.orders.orders import decide, insist_on_a_choice, name_of
from deliveryd.config import Config
from deliveryd.errors import DeliverydError
from deliveryd.journal.attention import DEAD_KINDS, DeadLetter
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import NOT_RETRIED, Action, ItemKind
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


class DeadFilter(NamedTuple):
    """Selects dead letters by kind, by when they were set aside, and by text in the reason."""

    kind: Annotated[
        list[ItemKind] | None,
        typer.Option(
            "--kind", parser=_parse_kind, metavar="KIND", help=f"Only this kind: {_KINDS}; can be repeated."
        ),
    ] = None
    since: Annotated[
        int | None,
        typer.Option(
            parser=parse_instant_option,
            metavar="TIME",
            help='Only those set aside since this instant, or within this time, such as "2h".',
        ),
    ] = None
    matching: Annotated[
        str, typer.Option(metavar="TEXT", help="Only those whose reason contains this text.")
    ] = ""

    def apply(self, config: Config, kinds: Sequence[ItemKind] = DEAD_KINDS) -> Sequence[DeadLetter]:
        """Return what is selected, of these kinds if none is named."""
        reader = open_reader(config.journal.place)
        return reader.dead_letters(self.kind or kinds, self.since or 0, self.matching)


Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Names, such as event:12.")]


@dead.command("list")
def list_dead(*, config: ConfigOption = USUAL_CONFIG, which: DeadFilter, as_data: AsData = False) -> None:
    """List the dead letters, oldest first."""
    print_found(which.apply(load_journal_as_owner(config)), as_data, _as_data, _lines)


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
    written = with_instants(record)
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
    which: DeadFilter,
    how: Ordering,
) -> None:
    """Retry dead letters.

    Events are reported again, messages start over, receipts are matched again.
    """
    insist_on_a_choice(names or (), everything, "names of dead letters")
    _decide(load_journal_as_owner(config), Action.RETRY, names, which, how)


@dead.command()
def drop(
    *,
    config: ConfigOption = USUAL_CONFIG,
    names: Names = None,
    everything: Everything = False,
    which: DeadFilter,
    how: Ordering,
) -> None:
    """Drop dead letters, so that they are no longer listed or counted.

    They stay in the journal, marked as dropped.
    """
    insist_on_a_choice(names or (), everything, "names of dead letters")
    _decide(load_journal_as_owner(config), Action.DROP, names, which, how)


def _decide(
    config: Config, verb: Action, names: Sequence[str] | None, which: DeadFilter, how: Ordering
) -> None:
    if names:
        found = [_parsed(name) for name in dict.fromkeys(names)]
    else:
        kinds = [kind for kind in DEAD_KINDS if verb is not Action.RETRY or kind not in NOT_RETRIED]
        found = [(each.kind, each.key) for each in which.apply(config, kinds)]
    by_kind = {kind: [key for other, key in found if other is kind] for kind in ItemKind}
    wanted = {kind: keys for kind, keys in by_kind.items() if keys}
    there = {name_of(each.kind, each.key) for each in DeadFilter().apply(config)}
    decide(config, verb, wanted, there, how)


def _lines(found: Sequence[DeadLetter]) -> Iterator[str]:
    for each in found:
        about = f" of message {each.message_id}" if each.message_id is not None else ""
        yield f"{name_of(each.kind, each.key)}  {each.what}{about}, {moment(each.at)}"
        yield f"    {each.reason}"
    yield f"{len(found)} set aside"


def _as_data(dead: DeadLetter) -> Mapping[str, object]:
    return {"name": name_of(dead.kind, dead.key), **with_instants(dead._asdict())}
