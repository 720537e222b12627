"""`deliveryd pause`, `resume` and `paused`: have messages wait, or take none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, WhyOption, identifier, insist_on_known
from deliveryd.commands.common.output import print_errors, print_found
from deliveryd.commands.common.printable import printable
from deliveryd.commands.common.shared_journal import known_channels, known_providers
from deliveryd.commands.common.tables import aligned, widths_of
from deliveryd.commands.orders.orders import Wanted, carry_out, report_reply
from deliveryd.config import Config
from deliveryd.journal.followers import NOT_FOLLOWED, await_followers
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import LONGEST_ORDERED_PAUSE, Action, ItemKind
from deliveryd.journal.pauses import INTAKE, RECENT, KnownIds, PausedMessages, PauseKind
from deliveryd.journal.pauses import as_data as pause_data
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import format_duration, format_instant
from deliveryd.options.units import parse_duration

pause = CommandGroup(
    no_args_is_help=True,
    help="Pause the intake, channels, providers, settings or messages.\n\n"
    "What is paused waits in the journal and uses up no try; it still expires. Attempts under way finish."
    " It lasts over restarts, until deliveryd resume or the end of --for. A running worker acts at once; the"
    " command returns when all workers of the journal do, or names those that don't after a lease.",
)
resume = CommandGroup(
    no_args_is_help=True,
    help="Resume what deliveryd pause paused.\n\n"
    "Its messages continue in portions, beside all other due ones. A running worker acts at once.",
)

HEADINGS = ("paused", "messages", "since (UTC)", "until (UTC)", "by")


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


class PauseOrdering(NamedTuple):
    """For how many seconds (None: until resumed) and why something is paused, and the form of the output."""

    lasts: Annotated[
        float | None,
        typer.Option(
            "--for",
            parser=_length,
            metavar="DURATION",
            help='Resume by itself after this time, such as "2h"; without it the pause has no end.',
        ),
    ] = None
    why: WhyOption = None
    as_data: AsData = False


class ResumeOrdering(NamedTuple):
    """Why something is resumed, and the form of the output."""

    why: WhyOption = None
    as_data: AsData = False


@pause.command("intake")
def pause_intake(*, config: ConfigOption = USUAL_CONFIG, how: PauseOrdering) -> None:
    """Take no more messages from the queue.

    Everything else continues. /readyz answers 503 meanwhile."""
    _pause(load_journal_as_owner(config), ItemKind.INTAKE, [INTAKE], how)


@resume.command("all")
def resume_all(*, config: ConfigOption = USUAL_CONFIG, how: ResumeOrdering) -> None:
    """Resume all that is paused."""
    loaded = load_journal_as_owner(config)
    wanted: defaultdict[ItemKind, list[str]] = defaultdict(list)
    for found in open_reader(loaded.journal.place).pauses():
        wanted[ItemKind(found.pause.kind)].append(found.pause.key)
    _resume(loaded, wanted, how)


@resume.command("intake")
def resume_intake(*, config: ConfigOption = USUAL_CONFIG, how: ResumeOrdering) -> None:
    """Take messages from the queue again."""
    _resume(load_journal_as_owner(config), {ItemKind.INTAKE: [INTAKE]}, how)


def _insist_on_channels(config: Config, names: Sequence[str]) -> None:
    known = known_channels(config)
    for name in names:
        insist_on_known("channel", name, known)


def _insist_on_providers(config: Config, names: Sequence[str]) -> None:
    known = known_providers(config)
    for name in names:
        insist_on_known("provider", name, known)


def _note_new_settings(config: Config, ids: Sequence[str]) -> None:
    known = _known(config, settings=list(map(int, ids))).settings
    for id_ in ids:
        if int(id_) not in known:
            print_errors(f"deliveryd: note: none of the latest {RECENT:,} messages has the settings {id_}")


def _note_new_messages(config: Config, ids: Sequence[str]) -> None:
    known = _known(config, messages=list(map(int, ids))).messages
    for id_ in ids:
        if int(id_) not in known:
            print_errors(f"deliveryd: note: message {id_} wasn't taken yet; it waits as soon as it is")


def _known(config: Config, messages: Sequence[int] = (), settings: Sequence[int] = ()) -> KnownIds:
    try:
        return open_reader(config.journal.place).known(messages, settings)
    except JournalAbsent:
        return KnownIds(frozenset(), frozenset())


def _id(text: str) -> str:
    return str(identifier(text))


class _Pausable(NamedTuple):
    """What can be paused: how it is named, what the commands say, and what is checked before a pause."""

    argument: Any
    pause_help: str
    resume_help: str
    check: Callable[[Config, Sequence[str]], None]


_PAUSABLE = {
    ItemKind.CHANNEL: _Pausable(
        typer.Argument(metavar="NAME", help="Names of channels."),
        "Send nothing on channels.\n\nMessages that would choose one wait; they don't take the next channel.",
        "Send on channels again.",
        _insist_on_channels,
    ),
    ItemKind.PROVIDER: _Pausable(
        typer.Argument(
            metavar="CHANNEL/PROVIDER", help="Providers; CHANNEL for one that has its channel's name."
        ),
        "Send nothing to providers.\n\n"
        "Other providers of the channel take their messages. Messages that no other takes wait, and so do"
        " those in doubt there.",
        "Send to providers again.",
        _insist_on_providers,
    ),
    ItemKind.SETTINGS: _Pausable(
        typer.Argument(metavar="ID", parser=_id, help="IDs of settings (templates)."),
        "Send no message with these settings.\n\n"
        "Messages don't fail for a mistake in the settings while they are paused.",
        "Send messages with these settings again.",
        _note_new_settings,
    ),
    ItemKind.MESSAGE: _Pausable(
        typer.Argument(metavar="ID", parser=_id, help="IDs of messages, also ones not taken yet."),
        "Don't send single messages.\n\nOne that wasn't taken yet waits as soon as it is.",
        "Send single messages again.",
        _note_new_messages,
    ),
}
"""What can be paused beside the intake."""


def _add_commands(kind: ItemKind, pausable: _Pausable) -> None:
    argument = pausable.argument

    @pause.command(kind, help=pausable.pause_help)
    def pause_these(
        *, config: ConfigOption = USUAL_CONFIG, keys: list[str] = argument, how: PauseOrdering
    ) -> None:
        loaded = load_journal_as_owner(config)
        pausable.check(loaded, keys)
        _pause(loaded, kind, keys, how)

    @resume.command(kind, help=pausable.resume_help)
    def resume_these(
        *, config: ConfigOption = USUAL_CONFIG, keys: list[str] = argument, how: ResumeOrdering
    ) -> None:
        _resume(load_journal_as_owner(config), {kind: keys}, how)


for _kind, _pausable in _PAUSABLE.items():
    _add_commands(_kind, _pausable)


def _pause(config: Config, kind: ItemKind, keys: Sequence[str], how: PauseOrdering) -> None:
    wanted = {kind: list(dict.fromkeys(keys))}
    answer = carry_out(config, Action.PAUSE, wanted, how.why, lasts=how.lasts)
    heading = "paused" if how.lasts is None else f"paused for {format_duration(how.lasts)}"
    if answer.done and (behind := await_followers(config.journal.place, config.journal.lease)):
        print_errors(f"deliveryd: warning: {', '.join(map(printable, behind))} {NOT_FOLLOWED}")
    report_reply(heading, answer, as_data=how.as_data)


def _resume(config: Config, wanted: Wanted, how: ResumeOrdering) -> None:
    keys = {kind: list(dict.fromkeys(each)) for kind, each in wanted.items()}
    report_reply("resumed", carry_out(config, Action.RESUME, keys, how.why), as_data=how.as_data)


def paused(*, config: ConfigOption = USUAL_CONFIG, as_data: AsData = False) -> None:
    """List what is paused, since when and by whom.

    Also until when, why, and how many messages wait for it.
    A message waits for one pause at a time. Read-only; works with or without a running worker.
    """
    try:
        found = open_reader(load_journal_as_owner(config).journal.place).pauses()
    except JournalAbsent:
        found = ()
    print_found(found, as_data, pause_data, _lines)


def _lines(found: Sequence[PausedMessages]) -> Iterator[str]:
    if not found:
        yield "nothing is paused"
        return
    rows = [HEADINGS, *map(_row, found)]
    widths = widths_of(rows)
    for row, each in zip(rows, (None, *found), strict=True):
        yield aligned(row, widths, right=(1,))
        if each is not None and each.pause.reason is not None:
            yield f"    {each.pause.reason}"


def _row(each: PausedMessages) -> tuple[str, ...]:
    pause = each.pause
    messages = "" if pause.kind is PauseKind.INTAKE else f"{each.messages:,}"
    until = "resumed" if pause.until is None else _second(pause.until)
    return pause.name, messages, _second(pause.since), until, pause.who or ""


def _second(instant: int) -> str:
    return format_instant(instant)[:19].replace("T", " ")
