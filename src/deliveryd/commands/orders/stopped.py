"""`deliveryd stopped`: the suppression list: recipients to whom nothing is sent on a channel any more."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from deliveryd.cleaning import cleaned
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.offline import configured_provider, split_identity
from deliveryd.commands.common.options import AsData, ConfigOption, WhyOption, insist_on_a_channel
from deliveryd.commands.common.output import print_found, print_lines
from deliveryd.commands.common.shared_journal import known_channels
from deliveryd.commands.common.tables import moment
from deliveryd.commands.orders.orders import client_of, report_reply
from deliveryd.config import Config
from deliveryd.control.client import order
from deliveryd.control.protocol import ControlReply
from deliveryd.errors import DeliverydError
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.sql.stopped import DIGEST_PREFIX, StoppedRecipient
from deliveryd.model import format_instant

stopped = CommandGroup(
    no_args_is_help=True,
    help="List suppressed recipients, and change the suppression list.\n\n"
    "A recipient is an address, or digest:HEX as in the list, which stores no addresses. Messages to a listed"
    " recipient take the next channel. A running worker acts at once.",
)

ChannelName = Annotated[
    str,
    typer.Option(
        "--channel", metavar="NAME",
        help="The channel, or one of its providers as CHANNEL/PROVIDER: the list is the channel's.",
    ),
]  # fmt: skip
AnyChannel = Annotated[str | None, typer.Option("--channel", metavar="NAME", help="Only this channel.")]


@stopped.command("list")
def list_stopped(
    *, config: ConfigOption = USUAL_CONFIG, channel: AnyChannel = None, as_data: AsData = False
) -> None:
    """List the recipients, oldest first.

    Each with its channel, since when, and the source: an answer, a receipt or an operator."""
    loaded = load_journal_as_owner(config)
    channel = None if channel is None else _channel(loaded, channel)
    found = open_reader(loaded.journal.place).stopped(channel)
    if channel is not None and not found:  # a channel that was removed may still have a list
        insist_on_a_channel(channel, known_channels(loaded))
    print_found(found, as_data, _as_data, _lines)


@stopped.command()
def lift(
    *,
    config: ConfigOption = USUAL_CONFIG,
    channel: ChannelName,
    recipients: Annotated[
        list[str], typer.Argument(metavar="RECIPIENT", help="Addresses, or digests such as digest:3f0c….")
    ],
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Take recipients off the list.

    The channel is used for them again."""
    by_digest = all(each.startswith(DIGEST_PREFIX) for each in recipients)
    loaded = load_journal_as_owner(config, *(() if by_digest else _tables_of(channel)))
    channel = _channel(loaded, channel)
    answer = _order(loaded, Action.LIFT, channel, list(dict.fromkeys(recipients)), why)
    if not answer.done:  # as above
        insist_on_a_channel(channel, known_channels(loaded))
    report_reply(str(Action.LIFT), answer, as_data=as_data)


@stopped.command("import")
def import_stopped(
    *,
    config: ConfigOption = USUAL_CONFIG,
    channel: ChannelName,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="One recipient per line; - for standard input.")
    ],
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Put recipients on the list.

    Blank lines are skipped, and so are recipients who are on the list already. Where the channel sends mail,
    or all its mappings send {customer.phone|e164}, anything but a mail address or a phone number is skipped
    too, and reported, with exit status 1. On any other channel, also one that sends {customer.phone} without
    |e164, each line is put on the list as it is."""
    loaded = load_journal_as_owner(config, *_tables_of(channel))
    channel = _channel(loaded, channel)
    insist_on_a_channel(channel, sorted(loaded.channels.configured))
    recipients = list(dict.fromkeys(_recipients(file)))
    answer = _order(loaded, Action.STOP, channel, recipients, why)
    known = [name for name, reason in answer.skipped.items() if "already" in reason]
    other = {name: reason for name, reason in answer.skipped.items() if name not in known}
    report_reply("import", ControlReply(answer.done, other), as_data=as_data)


@stopped.command()
def export(*, config: ConfigOption = USUAL_CONFIG, channel: ChannelName) -> None:
    """Print the digests of a channel's recipients, one per line.

    `import` reads them back into the same journal; another journal has another key for its digests."""
    loaded = load_journal_as_owner(config)
    channel = _channel(loaded, channel)
    found = open_reader(loaded.journal.place).stopped(channel)
    if not found:  # as above
        insist_on_a_channel(channel, known_channels(loaded))
    print_lines(*(each.name for each in found))


def _recipients(file: str) -> Iterator[str]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DeliverydError(f"{file} can't be read: {reason}") from None
    return (stripped for line in text.splitlines() if (stripped := cleaned(line)))


def _tables_of(channel: str) -> Sequence[str]:
    """Return the tables and keys by which a channel's recipients are read: a mistake there changes them."""
    return f"channels.{split_identity(channel)[0]}", "channels.order", "channels.presets_dir"


def _channel(config: Config, given: str) -> str:
    """Return the channel that was named, perhaps by one of its providers. Raises DeliverydError."""
    channel, provider = split_identity(given)
    if provider is not None:
        configured_provider(config, channel, provider)
    return channel


def _order(
    config: Config, verb: Action, channel: str, recipients: Sequence[str], why: str | None
) -> ControlReply:
    """Carry out an order; the reply names the recipients as they were given."""
    from deliveryd.commands.orders.recipients import as_sent, recipients_of  # noqa: PLC0415  # see there

    kind = recipients_of(config, channel)
    sent = {each: as_sent(each, kind) for each in recipients}
    given = {address: each for each, address in sent.items() if address is not None}
    unfit = [each for each, address in sent.items() if address is None]
    answer = ControlReply((), {})
    if given:
        keys = [f"{channel} {each}" for each in given]
        answer = order(client_of(config), verb, ItemKind.RECIPIENT, keys, why)
    done = tuple(given[key.removeprefix(f"{channel} ")] for key in answer.done)
    skipped = {given[key.removeprefix(f"{channel} ")]: reason for key, reason in answer.skipped.items()}
    return ControlReply(done, {**skipped, **dict.fromkeys(unfit, f"neither {kind.name} nor a digest")})


def _lines(found: Sequence[StoppedRecipient]) -> Iterator[str]:
    for each in found:
        reason = f": {each.reason}" if each.reason is not None else ""
        yield f"{each.name}  {each.channel}, since {moment(each.at)}, by {each.source}{reason}"
    yield f"{len(found)} suppressed"


def _as_data(each: StoppedRecipient) -> Mapping[str, object]:
    return {
        "recipient": each.name,
        "channel": each.channel,
        "since": format_instant(each.at),
        "source": each.source,
        "reason": each.reason,
    }
