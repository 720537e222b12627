"""`deliveryd pause`: have messages wait, or take none, until an operator resumes them or a time is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, WhyOption, identifier, insist_on_known
from deliveryd.commands.common.output import print_errors
from deliveryd.commands.common.printable import printable
from deliveryd.commands.common.shared_journal import await_followers, known_channels, known_providers
from deliveryd.commands.orders.orders import carry_out, report_reply
from deliveryd.config import Config
from deliveryd.control.protocol import LONGEST_ORDERED_PAUSE
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.pauses import INTAKE, RECENT, KnownIds
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import format_duration
from deliveryd.options.units import parse_duration

pause = CommandGroup(
    no_args_is_help=True,
    help="Pause the intake, channels, providers, settings or messages.\n\n"
    "What is paused waits in the journal and uses up no try; it still expires. Attempts under way finish."
    " It lasts over restarts, until deliveryd resume or the end of --for. A running worker acts at once; the"
    " command returns when all workers of the journal do, or names those that don't after a lease.",
)


def _length(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not 0 < seconds <= LONGEST_ORDERED_PAUSE:
        raise typer.BadParameter(
            f"must be greater than 0, and at most {format_duration(LONGEST_ORDERED_PAUSE)};"
            " leave it out for no limit"
        )
    return seconds


Lasts = Annotated[
    float | None,
    typer.Option(
        "--for",
        parser=_length,
        metavar="DURATION",
        help='Resume by itself after this time, such as "2h"; without it the pause has no end.',
    ),
]
ChannelNames = Annotated[list[str], typer.Argument(metavar="NAME", help="Names of channels.")]
ProviderNames = Annotated[
    list[str],
    typer.Argument(
        metavar="CHANNEL/PROVIDER", help="Providers; CHANNEL for one that has its channel's name."
    ),
]
SettingsIds = Annotated[
    list[int], typer.Argument(metavar="ID", parser=identifier, help="IDs of settings (templates).")
]
AnyMessageIds = Annotated[
    list[int],
    typer.Argument(metavar="ID", parser=identifier, help="IDs of messages, also ones not taken yet."),
]


@pause.command("intake")
def pause_intake(
    *,
    config: ConfigOption = USUAL_CONFIG,
    lasts: Lasts = None,
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Take no more messages from the queue.

    Everything else continues. /readyz answers 503 meanwhile."""
    _pause(load_journal_as_owner(config), ItemKind.INTAKE, [INTAKE], lasts, why, as_data=as_data)


@pause.command("channel")
def pause_channel(
    *,
    config: ConfigOption = USUAL_CONFIG,
    names: ChannelNames,
    lasts: Lasts = None,
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Send nothing on channels.

    Messages that would choose one wait; they don't take the next channel."""
    loaded = load_journal_as_owner(config)
    known = known_channels(loaded)
    for name in names:
        insist_on_known("channel", name, known)
    _pause(loaded, ItemKind.CHANNEL, names, lasts, why, as_data=as_data)


@pause.command("provider")
def pause_provider(
    *,
    config: ConfigOption = USUAL_CONFIG,
    names: ProviderNames,
    lasts: Lasts = None,
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Send nothing to providers.

    Other providers of the channel take their messages. Messages that no other takes wait, and so do those in
    doubt there."""
    loaded = load_journal_as_owner(config)
    known = known_providers(loaded)
    for name in names:
        insist_on_known("provider", name, known)
    _pause(loaded, ItemKind.PROVIDER, names, lasts, why, as_data=as_data)


@pause.command("settings")
def pause_settings(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: SettingsIds,
    lasts: Lasts = None,
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Send no message with these settings.

    Messages don't fail for a mistake in the settings while they are paused."""
    loaded = load_journal_as_owner(config)
    known = _known(loaded, settings=ids).settings
    for id_ in ids:
        if id_ not in known:
            print_errors(f"deliveryd: note: none of the latest {RECENT:,} messages has the settings {id_}")
    _pause(loaded, ItemKind.SETTINGS, list(map(str, ids)), lasts, why, as_data=as_data)


@pause.command("message")
def pause_message(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: AnyMessageIds,
    lasts: Lasts = None,
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Don't send single messages.

    One that wasn't taken yet waits as soon as it is."""
    loaded = load_journal_as_owner(config)
    known = _known(loaded, messages=ids).messages
    for id_ in ids:
        if id_ not in known:
            print_errors(f"deliveryd: note: message {id_} wasn't taken yet; it waits as soon as it is")
    _pause(loaded, ItemKind.MESSAGE, list(map(str, ids)), lasts, why, as_data=as_data)


def _known(config: Config, messages: Sequence[int] = (), settings: Sequence[int] = ()) -> KnownIds:
    try:
        return open_reader(config.journal.place).known(messages, settings)
    except JournalAbsent:
        return KnownIds(frozenset(), frozenset())


def _pause(
    config: Config,
    kind: ItemKind,
    keys: Sequence[str],
    lasts: float | None,
    why: str | None,
    *,
    as_data: bool,
) -> None:  # fmt: skip
    wanted = {kind: list(dict.fromkeys(keys))}
    answer = carry_out(config, Action.PAUSE, wanted, why, lasts=lasts)
    heading = "paused" if lasts is None else f"paused for {format_duration(lasts)}"
    if answer.done and (behind := await_followers(config)):
        print_errors(
            f"deliveryd: warning: {', '.join(map(printable, behind))} may begin attempts still: the pause"
            " wasn't followed there; see deliveryd workers, and fence one that hangs"
        )
    report_reply(heading, answer, as_data=as_data)
