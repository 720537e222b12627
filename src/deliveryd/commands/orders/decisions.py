"""`deliveryd decisions`: list what operators decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, identifier, parse_instant_option
from deliveryd.commands.common.output import print_lines
from deliveryd.commands.common.tables import (
    AsLines,
    insist_on_one_form,
    moment,
    print_records,
    print_table,
    with_instants,
)
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.place import JournalPlace
from deliveryd.journal.reader import Decision, DecisionSelection
from deliveryd.options.suggestion import suggestion

_PORTION = 1000
"""Decisions that are read in one transaction."""

_HEADING = ("AT", "USER", "ORDER", "ABOUT", "REASON")


def _verb(text: str) -> str:
    known = [str(verb) for verb in Action]
    if text not in known:
        names = ", ".join(map(repr, known))  # some have a comma
        raise typer.BadParameter(
            f"there is no order {text[:80]!a}{suggestion(text, known)}; there are {names}"
        )
    return text


def decisions(
    *,
    config: ConfigOption = USUAL_CONFIG,
    message: Annotated[
        int | None, typer.Option(metavar="ID", parser=identifier, help="Only those about this message.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of this user, or on behalf of them.")
    ] = None,
    verb: Annotated[
        str | None, typer.Option(parser=_verb, metavar="ORDER", help='Only these orders, such as "resend".')
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            parser=parse_instant_option,
            metavar="TIME",
            help='Only those since this instant, or within this time, such as "2h".',
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            parser=parse_instant_option,
            metavar="TIME",
            help="Only those until this instant, or that long ago.",
        ),
    ] = None,
    as_data: AsData = False,
    as_lines: AsLines = False,
) -> None:
    """List operators' decisions, oldest first.

    Each with who gave which order, when, and why. They are kept as long as the messages that they are about.
    """
    insist_on_one_form(as_data=as_data, as_lines=as_lines)
    selection = DecisionSelection(since, until, message, user, verb)
    found = _read(load_journal_as_owner(config).journal.place, selection)
    if as_data or as_lines:
        print_records(map(_as_data, found), as_lines=as_lines)
    else:
        count = print_table(_HEADING, map(_row, found))
        print_lines("1 decision" if count == 1 else f"{count:,} decisions")


def _read(journal: JournalPlace, selection: DecisionSelection) -> Iterator[Decision]:
    reader = open_reader(journal)
    after = 0
    while portion := reader.decisions(selection, after, _PORTION):
        yield from portion
        after = portion[-1].seq


def _row(decision: Decision) -> Sequence[str]:
    on_behalf = f" for {decision.caller} (claimed)" if decision.caller is not None else ""
    return (
        moment(decision.at),
        f"{decision.user or 'unknown'}{on_behalf}",
        decision.verb,
        decision.kind if decision.kind == ItemKind.INTAKE else f"{decision.kind} {decision.key}",
        decision.reason or "",
    )


def _as_data(decision: Decision) -> Mapping[str, object]:
    return with_instants(decision._asdict())
