"""Shared parts of the commands that give orders: selection, execution, reporting the reply."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import typer

from deliveryd.commands.common.conventions import FAILED
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.config import Config
from deliveryd.control.client import ControlClient, order
from deliveryd.control.protocol import ControlReply
from deliveryd.journal.opening import JournalTerms
from deliveryd.journal.orders import Action, ItemKind


def insist_on_a_choice(names: Sequence[object], everything: bool) -> None:
    """Raise BadParameter unless exactly one of names and --all is given."""
    if bool(names) == everything:
        raise typer.BadParameter("give what is meant, or --all, but not both")


def name_of(kind: ItemKind, key: object) -> str:
    """Return the name of what an order is about on the command line."""
    return str(kind) if kind is ItemKind.INTAKE else f"{kind}:{key}"


def carry_out(
    config: Config,
    verb: Action,
    wanted: Mapping[ItemKind, Sequence[str]],
    reason: str | None = None,
    *,
    lasts: float | None = None,
) -> ControlReply:
    """Execute the orders, through the worker or directly on the journal; the reply holds names.

    A pause lasts this many seconds.
    """
    client = ControlClient(
        config.journal.place,
        config.control.socket,
        JournalTerms(config.events.details_field, config.journal.keep_variables, lease=config.journal.lease),
        config.channels.named,
    )
    done: list[str] = []
    skipped: dict[str, str] = {}
    for kind, keys in wanted.items():
        answer = order(client, verb, kind, keys, reason, lasts=lasts)
        done += [name_of(kind, key) for key in answer.done]
        skipped |= {name_of(kind, key): reason for key, reason in answer.skipped.items()}
    return ControlReply(tuple(done), skipped)


def expected_reply(
    wanted: Mapping[ItemKind, Sequence[str]],
    there: Collection[str],
    refused: Mapping[ItemKind, str] = MappingProxyType({}),
) -> ControlReply:
    """Return the reply that an order would get now; `refused` has why it is refused for some kinds."""
    done: list[str] = []
    skipped: dict[str, str] = {}
    for kind, keys in wanted.items():
        for name in (name_of(kind, key) for key in keys):
            if kind in refused:
                skipped[name] = refused[kind]
            elif name in there:
                done.append(name)
            else:
                skipped[name] = "nothing to decide: not held and not set aside"
    return ControlReply(tuple(done), skipped)


def report_reply(heading: str, answer: ControlReply, *, as_data: bool) -> None:
    """Print the reply to an order; exit with status 1 if anything was skipped."""
    if as_data:
        print_json({"what": heading, "done": answer.done, "skipped": answer.skipped})
    else:
        print_lines(*_as_lines(heading, answer))
    if answer.skipped:
        raise typer.Exit(FAILED)


def _as_lines(heading: str, answer: ControlReply) -> Iterator[str]:
    yield f"{heading}: {len(answer.done)}"
    yield from (f"  {name}" for name in answer.done)
    if answer.skipped:
        yield f"skipped: {len(answer.skipped)}"
        yield from (f"  {name}: {reason}" for name, reason in answer.skipped.items())
