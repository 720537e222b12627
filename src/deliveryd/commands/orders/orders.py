"""Giving orders: carrying them out or showing what they would do, and printing what they did."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType

import typer

from deliveryd.commands.common.conventions import FAILED
from deliveryd.commands.common.options import Ordering
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.config import Config
from deliveryd.control.client import ControlClient, order
from deliveryd.control.protocol import MOST_KEYS, ControlReply
from deliveryd.errors import DeliverydError
from deliveryd.journal.opening import JournalTerms, open_reader
from deliveryd.journal.orders import NOT_RETRIED, Action, ItemKind
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import format_instant

_SHOWN_IDS = 5

Wanted = Mapping[ItemKind, Sequence[str]]
"""What an order is about: keys by their kind."""


def insist_on_a_choice(names: Sequence[object], everything: bool, what: str = "message ids") -> None:
    """Raise BadParameter unless exactly one of names and --all is given; `what` the names are."""
    if bool(names) == everything:
        raise typer.BadParameter(f"give {what}, or --all{', but not both' if everything else ''}")


def name_of(kind: ItemKind, key: object) -> str:
    """Return the name of what an order is about on the command line."""
    return str(kind) if kind is ItemKind.INTAKE else f"{kind}:{key}"


def client_of(config: Config) -> ControlClient:
    """Return what gives orders to the worker, or carries them out on the journal."""
    return ControlClient(
        config.journal.place,
        config.control.socket,
        JournalTerms(config.events.details_field, config.journal.keep_variables, lease=config.journal.lease),
        config.channels.named,
        cache(_print_note),  # once, however many portions there are
    )


def _print_note(text: str) -> None:
    print_errors(f"deliveryd: note: {text}")


def carry_out(
    config: Config, verb: Action, wanted: Wanted, reason: str | None = None, *, lasts: float | None = None
) -> ControlReply:
    """Execute the orders; the reply holds names. A pause lasts this many seconds."""
    client = client_of(config)
    done: list[str] = []
    skipped: dict[str, str] = {}
    for kind, keys in wanted.items():
        answer = order(client, verb, kind, keys, reason, lasts=lasts)
        done += [name_of(kind, key) for key in answer.done]
        skipped |= {name_of(kind, key): reason for key, reason in answer.skipped.items()}
    return ControlReply(tuple(done), skipped)


def expected_reply(
    wanted: Wanted, there: Collection[str], refused: Mapping[ItemKind, str] = MappingProxyType({})
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


def decide(config: Config, verb: Action, wanted: Wanted, there: Collection[str], how: Ordering) -> None:
    """Give an order about what is `there`, held or set aside, and report it; see `expected_reply`."""
    if how.dry_run:
        answer = expected_reply(wanted, there, NOT_RETRIED if verb is Action.RETRY else {})
    else:
        answer = carry_out(config, verb, wanted, how.why)
    report_reply(f"would {verb}" if how.dry_run else str(verb), answer, as_data=how.as_data)


def report_reply(heading: str, answer: ControlReply, *, as_data: bool) -> None:
    """Print the reply to an order; exit with status 1 if anything was skipped."""
    if as_data:
        print_json({"what": heading, "done": answer.done, "skipped": answer.skipped})
    else:
        print_lines(
            f"{heading}: {len(answer.done)}",
            *(f"  {name}" for name in answer.done),
            *skipped_lines("skipped", answer.skipped),
        )
    if answer.skipped:
        raise typer.Exit(FAILED)


def skipped_lines(heading: str, skipped: Mapping[str, str], advice: str = "") -> Iterator[str]:
    """Return what wasn't done, and why; nothing if all was."""
    if skipped:
        yield f"{heading}: {len(skipped)}{advice}"
        yield from (f"  {name}: {reason}" for name, reason in skipped.items())


# orders about many messages, of which each may be refused for a reason of its own


def obstacles(config: Config, verb: Action, ids: Sequence[int]) -> Mapping[int, str]:
    """Return for which messages an order would be refused now, and why."""
    reader = open_reader(config.journal.place)
    refused: dict[int, str] = {}
    for begin in range(0, len(ids), MOST_KEYS):
        refused |= reader.obstacles(verb, ids[begin : begin + MOST_KEYS])
    return refused


def order_messages(
    config: Config,
    verb: Action,
    ids: Sequence[int],
    how: Ordering,
    headings: tuple[str, str],
    *,
    until: int | None = None,
) -> None:
    """Give an order about messages, or show what it would do; exit with status 1 if any was refused.

    `headings`: what would be done and what was done, for the report. `until`: when they were selected; None:
    the ids were given. Raises DeliverydError, with how to go on with the rest.
    """
    if how.dry_run:
        refused = obstacles(config, verb, ids)
        done = [id_ for id_ in ids if id_ not in refused]
    else:
        done, refused = _order_messages(config, verb, ids, how.why, until)
    would, did = headings
    heading = would if how.dry_run else did
    if how.as_data:
        print_json(
            {"what": heading, "done": done, "refused": {str(id_): why for id_, why in refused.items()}}
        )
    else:
        print_lines(f"{heading}: {_messages(len(done))}", *_refused_lines(refused))
    if refused:
        raise typer.Exit(FAILED)


def _order_messages(
    config: Config, verb: Action, ids: Sequence[int], why: str | None, until: int | None
) -> tuple[list[int], Mapping[int, str]]:
    """Carry it out in portions, of which each is one transaction."""
    try:
        reply = order(client_of(config), verb, ItemKind.MESSAGE, list(map(str, ids)), why)
    except JournalAbsent:
        raise
    except DeliverydError as error:
        again = ""
        if until is not None:
            since = f"--until {format_instant(until)}, which leaves out what fails from now on"
            again = f": repeat the command with {since}"
        raise DeliverydError(f"{error}; what is done stays done{again}") from None
    return list(map(int, reply.done)), {int(id_): why for id_, why in reply.skipped.items()}


def _refused_lines(refused: Mapping[int, str]) -> Iterator[str]:
    if not refused:
        return
    yield f"refused: {_messages(len(refused))}"
    by_reason: dict[str, list[int]] = {}
    for id_, why in refused.items():
        by_reason.setdefault(why, []).append(id_)
    for why, ids in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        more = f" and {len(ids) - _SHOWN_IDS:,} more" if len(ids) > _SHOWN_IDS else ""
        yield f"  {len(ids):,}  {why}"
        yield f"      {', '.join(map(str, ids[:_SHOWN_IDS]))}{more}"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
