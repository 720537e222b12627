"""Options that select messages, reading what they select, and what is shown of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from deliveryd.commands.common.options import (
    identifier,
    insist_on_a_channel,
    insist_on_known,
    message_number,
    parse_instant_option,
)
from deliveryd.commands.common.shared_journal import known_channels, known_providers
from deliveryd.commands.common.tables import ProgressLine
from deliveryd.config import Config
from deliveryd.journal.opening import open_reader
from deliveryd.journal.reader import read_found
from deliveryd.journal.selection import FoundMessage, Selection
from deliveryd.model import channel_of, format_instant
from deliveryd.states import State

NO_CHANNEL = "-"
_RANGE = re.compile(r"(-?[0-9]+)?\.\.(-?[0-9]+)?")

MessageIds = Annotated[
    list[int] | None, typer.Argument(metavar="MESSAGE_ID", parser=message_number, help="IDs of messages.")
]
AcceptDuplicates = Annotated[
    bool,
    typer.Option(
        "--accept-duplicates",
        help="Include messages that may have arrived already: their customers might get them twice.",
    ),
]


class MessageFilter(NamedTuple):
    """Options that select messages by what is known of them; None: any."""

    matching: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those whose reason contains this text.")
    ] = None
    channel: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of this channel, or that failed there.")
    ] = None
    provider: Annotated[
        str | None,
        typer.Option(metavar="CHANNEL/NAME", help="Only those of this provider, or that failed there."),
    ] = None
    settings: Annotated[
        int | None, typer.Option("--settings", metavar="ID", parser=identifier, help="Only these settings.")
    ] = None
    customer: Annotated[
        int | None, typer.Option(metavar="ID", parser=identifier, help="Only messages for this customer.")
    ] = None
    since: Annotated[
        int | None,
        typer.Option(
            parser=parse_instant_option,
            metavar="TIME",
            help='Only those that ended since this instant, or within this time, such as "2h". What hasn\'t'
            " ended counts by when it was taken, what was delivered by when it was sent.",
        ),
    ] = None
    until: Annotated[
        int | None,
        typer.Option(
            parser=parse_instant_option,
            metavar="TIME",
            help="Only those that ended until this instant, or longer ago than this time.",
        ),
    ] = None

    def selection(self, ids: Sequence[int] | None, states: Sequence[State]) -> Selection:
        """Return what is selected: of these ids and in these states, if there are any."""
        return Selection(
            ids=tuple(dict.fromkeys(ids or ())), states=tuple(states), customer=self.customer,
            channel=self.channel, provider=_provider_name(self.provider), settings=self.settings,
            reason=self.matching, since=self.since, until=self.until,
        )  # fmt: skip


class IdRange(NamedTuple):
    """The first and the last id of a range; None: no bound."""

    first: int | None = None
    last: int | None = None


def id_range(text: str) -> IdRange:
    """Parse a range of ids such as 1000..2000, 1000.. or ..2000. Raises BadParameter."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or found[0] == "..":
        raise typer.BadParameter(f"{text[:80]!a} isn't a range such as 1000..2000, 1000.. or ..2000")
    first, last = (None if bound is None else identifier(bound) for bound in found.groups())
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"the range {text[:80]} is empty: its first ID is above its last")
    return IdRange(first, last)


def _provider_name(provider: str | None) -> str | None:
    """Return a provider's name as the journal has it: CHANNEL where both words are the same."""
    if provider is None:
        return None
    channel, _, name = provider.partition("/")
    return channel if name in ("", channel) else provider


class _FindProgress:
    """How many messages were read, and how many of them are selected."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self.found = 0
        self._examined = 0

    def came_to(self, examined: int) -> None:
        self._examined = examined
        self._line.came_to(self)

    def text(self) -> str:
        return f"{self._examined:,} messages were read, {self.found:,} found"


def find_all(config: Config, selection: Selection, *, beside_output: bool) -> Iterator[FoundMessage]:
    """Find messages; show the progress on standard error, unless the output goes to the terminal meanwhile.

    Raises BadParameter if nothing was found of a channel or a provider that no worker has.
    """
    line = ProgressLine(beside_output=beside_output and sys.stdout.isatty())
    progress = _FindProgress(line)
    try:
        for found in read_found(open_reader(config.journal.place), selection, progress.came_to):
            progress.found += 1
            yield found
    finally:
        line.close()
    if not progress.found:
        _insist_on_known_names(config, selection)


def _insist_on_known_names(config: Config, selection: Selection) -> None:
    if selection.channel is not None:
        insist_on_a_channel(selection.channel, known_channels(config))
    if selection.provider is not None:
        insist_on_known("provider", selection.provider, known_providers(config), "--provider")


def channels_of(found: FoundMessage) -> tuple[str, ...]:
    """Return the channels of a message, each once, in the order in which it came to them."""
    return tuple(dict.fromkeys(map(channel_of, found.providers)))


def cells_of(found: FoundMessage) -> tuple[str, str, str, str]:
    """Return a message's id, channels, settings and reason as the cells of a table."""
    settings = NO_CHANNEL if found.settings_id is None else str(found.settings_id)
    return str(found.told_as), ", ".join(channels_of(found)) or NO_CHANNEL, settings, found.reason or ""


def found_data(found: FoundMessage) -> Mapping[str, object]:
    """Return a found message as JSON."""
    return {
        "id": found.told_as,
        "state": found.state.name.lower(),
        "channels": list(channels_of(found)),
        "providers": list(found.providers),
        "settings": found.settings_id,
        "customer": found.customer_id,
        "taken_at": format_instant(found.taken_at),
        "ended_at": None if found.ended_at is None else format_instant(found.ended_at),
        "beginning": found.generation,
        "reason": found.reason,
        "may_have_arrived": found.may_have_arrived,
    }
