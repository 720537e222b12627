"""`deliveryd in-doubt`: list the messages held in doubt, and resend or settle them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import anyio
import typer

from deliveryd.channels.base import NotTaken, Taken
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.moments import moment
from deliveryd.commands.common.options import (
    AsData,
    ConfigOption,
    DryRun,
    Everything,
    WhyOption,
    before_now,
    insist_on_a_channel,
    integer,
)
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.common.shared_journal import known_channels
from deliveryd.commands.orders.orders import (
    carry_out,
    expected_reply,
    insist_on_a_choice,
    name_of,
    report_reply,
)
from deliveryd.config import Config
from deliveryd.journal.attention import InDoubtMessage
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.model import channel_of, format_instant

in_doubt = CommandGroup(
    no_args_is_help=True,
    help="List messages held in doubt, and resend or settle them.\n\n"
    'Messages are held on channels with on_in_doubt = "hold". A running worker acts at once.',
)

Ids = Annotated[
    list[int] | None, typer.Argument(metavar="MESSAGE_ID", parser=integer, help="IDs of messages.")
]
ChannelOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only messages of this channel, or of one provider of it."),
]
Until = Annotated[
    int | None,
    typer.Option(
        "--older-than",
        parser=before_now,
        metavar="DURATION",
        help='Only messages in doubt for longer than this, such as "1h".',
    ),
]


class Known(StrEnum):
    """The outcome of an attempt, as an operator determined it."""

    SENT = "sent"
    FAILED = "failed"


class _Choice(NamedTuple):
    """Selects messages by ID, or all of a channel that have been in doubt since `until` at the latest."""

    ids: Sequence[int]
    channel: str | None
    until: int | None

    @classmethod
    def of(cls, ids: Sequence[int] | None, everything: bool, channel: str | None, until: int | None) -> Self:
        insist_on_a_choice(ids or (), everything)
        return cls(ids or (), channel, until)


DOUBLES = "deliveryd: warning: with a new key, whoever already received one of these messages gets it twice"

VERBS: Mapping[Known, Action] = {Known.SENT: Action.SETTLE_SENT, Known.FAILED: Action.SETTLE_FAILED}


@in_doubt.command("list")
def list_held(
    *,
    config: ConfigOption = USUAL_CONFIG,
    channel: ChannelOption = None,
    until: Until = None,
    as_data: AsData = False,
) -> None:
    """List messages held in doubt.

    Each with its idempotency key at the provider."""
    held = _held(load_journal_as_owner(config), channel, until)
    if as_data:
        print_json([_as_data(each) for each in held])
    else:
        print_lines(*_lines(held))


@in_doubt.command()
def resend(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: Ids = None,
    everything: Everything = False,
    channel: ChannelOption = None,
    until: Until = None,
    new_key: Annotated[
        bool,
        typer.Option(
            "--new-key",
            help="Start over with a new key and the current templates: whoever received the message"
            " already gets it twice.",
        ),
    ] = False,
    why: WhyOption = None,
    dry_run: DryRun = False,
    as_data: AsData = False,
) -> None:
    """Resend messages with the same key and the same content.

    A provider that already has the message recognizes it by the key. A message that was only answered 503 is
    rendered again.
    """
    choice = _Choice.of(ids, everything, channel, until)
    if new_key:
        print_errors(DOUBLES)
    verb = Action.RESEND_ANEW if new_key else Action.RESEND
    _decide(config, verb, choice, why=why, dry_run=dry_run, as_data=as_data)


@in_doubt.command()
def settle(
    *,
    config: ConfigOption = USUAL_CONFIG,
    as_: Annotated[
        Known | None,
        typer.Option(
            "--as",
            metavar="OUTCOME",
            help="The outcome of the attempts: sent or failed.",
        ),
    ] = None,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask",
            help="Ask the providers instead: what one has is settled as sent, what it doesn't have is resent,"
            " and the rest stays held.",
        ),
    ] = False,
    ids: Ids = None,
    everything: Everything = False,
    channel: ChannelOption = None,
    until: Until = None,
    why: WhyOption = None,
    dry_run: DryRun = False,
    as_data: AsData = False,
) -> None:
    """Settle attempts as sent or failed, or by asking the providers.

    A provider can be asked if its table has lookup."""
    choice = _Choice.of(ids, everything, channel, until)
    if ask:
        if as_ is not None:
            raise typer.BadParameter("give either --as or --ask")
        _settle_by_asking(config, choice, why=why, dry_run=dry_run, as_data=as_data)
    elif as_ is None:
        raise typer.BadParameter("give --as or --ask")
    else:
        _decide(config, VERBS[as_], choice, why=why, dry_run=dry_run, as_data=as_data)


def _settle_by_asking(
    config: Path, choice: _Choice, *, why: str | None, dry_run: bool, as_data: bool
) -> None:
    from deliveryd.commands.orders.asking import ask_providers  # noqa: PLC0415  # see there

    loaded = load_journal_as_owner(config)
    held = [
        each
        for each in _held(loaded, choice.channel, choice.until)
        if not choice.ids or each.message_id in choice.ids
    ]
    found = anyio.run(ask_providers, loaded, held)
    absent = set(choice.ids) - {each.message_id for each in held}
    skipped = {name_of(ItemKind.MESSAGE, id_): "it isn't held in doubt" for id_ in sorted(absent)}
    wanted: dict[Action, list[str]] = {Action.SETTLE_SENT: [], Action.RESEND: []}
    for id_, answer in sorted(found.items()):
        if isinstance(answer, Taken | NotTaken):
            wanted[Action.SETTLE_SENT if isinstance(answer, Taken) else Action.RESEND].append(str(id_))
        else:
            skipped[name_of(ItemKind.MESSAGE, id_)] = answer.reason
    done: dict[Action, Sequence[str]] = {}
    for verb, keys in wanted.items():
        order = {ItemKind.MESSAGE: keys}
        there = [name_of(ItemKind.MESSAGE, key) for key in keys]
        reply = expected_reply(order, there) if dry_run else carry_out(loaded, verb, order, why)
        done[verb] = reply.done
        skipped |= reply.skipped
    _report_asked(done, skipped, "would " if dry_run else "", as_data=as_data)


def _report_asked(
    done: Mapping[Action, Sequence[str]], skipped: Mapping[str, str], prefix: str, *, as_data: bool
) -> None:
    """Print what the providers' answers led to; exit with status 1 if anything stays held."""
    if as_data:
        print_json(
            {"what": f"{prefix}settle by asking", "sent": done[Action.SETTLE_SENT]}
            | {"resent": done[Action.RESEND], "skipped": skipped}
        )
    else:
        for verb, names in done.items():
            print_lines(f"{prefix}{verb}: {len(names)}", *(f"  {name}" for name in names))
        if skipped:
            print_lines(
                f"skipped: {len(skipped)}", *(f"  {name}: {reason}" for name, reason in skipped.items())
            )
    if skipped:
        raise typer.Exit(FAILED)


def _decide(
    config: Path, verb: Action, choice: _Choice, *, why: str | None, dry_run: bool, as_data: bool
) -> None:
    loaded = load_journal_as_owner(config)
    held = [str(each.message_id) for each in _held(loaded, choice.channel, choice.until)]
    wanted = {ItemKind.MESSAGE: list(dict.fromkeys(map(str, choice.ids))) or held}
    there = {name_of(ItemKind.MESSAGE, key) for key in held}
    answer = expected_reply(wanted, there) if dry_run else carry_out(loaded, verb, wanted, why)
    report_reply(f"would {verb}" if dry_run else str(verb), answer, as_data=as_data)


def _held(config: Config, channel: str | None, until: int | None) -> Sequence[InDoubtMessage]:
    """Return the held messages. A channel must be configured now, or have held messages from before."""
    reader = open_reader(config.journal.place)
    held = reader.in_doubt(channel, until)
    if channel is not None and not held:
        of_all = (channel_of(each.provider) for each in reader.in_doubt(None, None))
        insist_on_a_channel(channel, sorted({*known_channels(config), *of_all}))
    return held


def _lines(held: Sequence[InDoubtMessage]) -> Iterator[str]:
    for each in held:
        repeats = f", tried {each.tries} times" if each.tries > 1 else ""
        yield f"{each.message_id}  {each.provider}, since {moment(each.since)}{repeats}"
        yield f"    key {each.key}"
        yield f"    {each.reason or 'no reason recorded'}"
    yield f"{len(held)} held in doubt"


def _as_data(held: InDoubtMessage) -> Mapping[str, object]:
    channel = channel_of(held.provider)
    return held._asdict() | {"channel": channel, "since": format_instant(held.since)}
