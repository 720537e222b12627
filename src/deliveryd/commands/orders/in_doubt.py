"""`deliveryd in-doubt`: list the messages held in doubt, and resend or settle them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Annotated, NamedTuple

import anyio
import typer

from deliveryd.channels.base import AskLater, Channel, Dispatch, Found, NotTaken, Taken, Unknown
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.options import (
    AsData,
    ConfigOption,
    Everything,
    Ordering,
    before_now,
    insist_on_a_channel,
    integer,
)
from deliveryd.commands.common.output import print_errors, print_found, print_json, print_lines
from deliveryd.commands.common.shared_journal import known_channels
from deliveryd.commands.common.tables import moment, with_instants
from deliveryd.commands.orders.orders import (
    carry_out,
    decide,
    expected_reply,
    insist_on_a_choice,
    name_of,
    skipped_lines,
)
from deliveryd.config import Config
from deliveryd.journal.attention import InDoubtMessage
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.model import Entry, Rendered, WallClock, channel_of, format_duration

in_doubt = CommandGroup(
    no_args_is_help=True,
    help="List messages held in doubt, and resend or settle them.\n\n"
    'Messages are held on channels with on_in_doubt = "hold". A running worker acts at once.',
)

AT_A_TIME = 10
"""Questions to providers that are asked at the same time."""

_NOTHING = Rendered("", "", {})


class Known(StrEnum):
    """The outcome of an attempt, as an operator determined it."""

    SENT = "sent"
    FAILED = "failed"


class HeldFilter(NamedTuple):
    """Selects messages that are in doubt, and have been since `until` at the latest."""

    channel: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only messages of this channel, or of one provider of it."),
    ] = None
    until: Annotated[
        int | None,
        typer.Option(
            "--older-than",
            parser=before_now,
            metavar="DURATION",
            help='Only messages in doubt for longer than this, such as "1h".',
        ),
    ] = None


Ids = Annotated[
    list[int] | None, typer.Argument(metavar="MESSAGE_ID", parser=integer, help="IDs of messages.")
]
DOUBLES = "deliveryd: warning: with a new key, whoever already received one of these messages gets it twice"

VERBS: Mapping[Known, Action] = {Known.SENT: Action.SETTLE_SENT, Known.FAILED: Action.SETTLE_FAILED}


@in_doubt.command("list")
def list_held(*, config: ConfigOption = USUAL_CONFIG, which: HeldFilter, as_data: AsData = False) -> None:
    """List messages held in doubt.

    Each with its idempotency key at the provider."""
    print_found(_held(load_journal_as_owner(config), which), as_data, _as_data, _lines)


@in_doubt.command()
def resend(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: Ids = None,
    everything: Everything = False,
    which: HeldFilter,
    new_key: Annotated[
        bool,
        typer.Option(
            "--new-key",
            help="Start over with a new key and the current templates: whoever received the message"
            " already gets it twice.",
        ),
    ] = False,
    how: Ordering,
) -> None:
    """Resend messages with the same key and the same content.

    A provider that already has the message recognizes it by the key. A message that was only answered 503 is
    rendered again.
    """
    insist_on_a_choice(ids or (), everything)
    if new_key:
        print_errors(DOUBLES)
    verb = Action.RESEND_ANEW if new_key else Action.RESEND
    _decide(load_journal_as_owner(config), verb, ids or (), which, how)


@in_doubt.command()
def settle(
    *,
    config: ConfigOption = USUAL_CONFIG,
    as_: Annotated[
        Known | None,
        typer.Option("--as", metavar="OUTCOME", help="The outcome of the attempts: sent or failed."),
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
    which: HeldFilter,
    how: Ordering,
) -> None:
    """Settle attempts as sent or failed, or by asking the providers.

    A provider can be asked if its table has lookup."""
    insist_on_a_choice(ids or (), everything)
    if ask and as_ is not None:
        raise typer.BadParameter("give either --as or --ask")
    if ask:
        _settle_by_asking(load_journal_as_owner(config), ids or (), which, how)
    elif as_ is None:
        raise typer.BadParameter("give --as or --ask")
    else:
        _decide(load_journal_as_owner(config), VERBS[as_], ids or (), which, how)


def _settle_by_asking(config: Config, ids: Sequence[int], which: HeldFilter, how: Ordering) -> None:
    held = [each for each in _held(config, which) if not ids or each.message_id in ids]
    found = anyio.run(_ask_providers, config, held)
    absent = set(ids) - {each.message_id for each in held}
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
        reply = expected_reply(order, there) if how.dry_run else carry_out(config, verb, order, how.why)
        done[verb] = reply.done
        skipped |= reply.skipped
    _report_asked(done, skipped, "would " if how.dry_run else "", as_data=how.as_data)


async def _ask_providers(config: Config, held: Sequence[InDoubtMessage]) -> Mapping[int, Found]:
    """Ask about each message, by its id, as a worker would. Raises ConfigError."""
    from deliveryd.worker.wiring import open_provider  # noqa: PLC0415  # only this opens providers

    found: dict[int, Found] = {}
    kept_clock = open_reader(config.journal.place).kept_clock()
    limit = anyio.CapacityLimiter(AT_A_TIME)
    async with AsyncExitStack() as stack:
        providers = {}
        for name in {each.provider for each in held} & config.channels.providers.keys():
            providers[name] = open_provider(config, config.channels.providers[name])
            stack.push_async_callback(providers[name].aclose)

        async def ask(each: InDoubtMessage) -> None:
            async with limit:
                found[each.message_id] = await _ask(providers.get(each.provider), each, kept_clock)

        async with anyio.create_task_group() as tasks:
            for each in held:
                tasks.start_soon(ask, each)
    return found


async def _ask(provider: Channel | None, held: InDoubtMessage, kept_clock: str) -> Found:
    from deliveryd.delivery.passed_time import is_older  # noqa: PLC0415  # not where commands only read

    if provider is None:
        return Unknown(f"its provider {held.provider} isn't configured")
    if provider.lookup_after is None:
        return Unknown(f"its provider {held.provider} can't be asked: configure lookup")
    if not is_older(kept_clock, held.since, provider.lookup_after):
        return AskLater(
            f"in doubt for less than lookup.after, which is {format_duration(provider.lookup_after)}"
        )
    entry = Entry(held.message_id, 0, 0, {}, provider=held.provider, doubt=True)
    dispatch = Dispatch(held.key, entry, None, _NOTHING, None, WallClock(), provider_id=held.provider_id)
    return await provider.look_up(dispatch)


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
            print_lines(*skipped_lines("skipped", skipped))
    if skipped:
        raise typer.Exit(FAILED)


def _decide(config: Config, verb: Action, ids: Sequence[int], which: HeldFilter, how: Ordering) -> None:
    held = [str(each.message_id) for each in _held(config, which)]
    wanted = {ItemKind.MESSAGE: list(dict.fromkeys(map(str, ids))) or held}
    decide(config, verb, wanted, {name_of(ItemKind.MESSAGE, key) for key in held}, how)


def _held(config: Config, which: HeldFilter) -> Sequence[InDoubtMessage]:
    """Return the held messages. A channel must be configured now, or have held messages from before."""
    reader = open_reader(config.journal.place)
    held = reader.in_doubt(which.channel, which.until)
    if which.channel is not None and not held:
        of_all = (channel_of(each.provider) for each in reader.in_doubt(None, None))
        insist_on_a_channel(which.channel, sorted({*known_channels(config), *of_all}))
    return held


def _lines(held: Sequence[InDoubtMessage]) -> Iterator[str]:
    for each in held:
        repeats = f", tried {each.tries} times" if each.tries > 1 else ""
        yield f"{each.message_id}  {each.provider}, since {moment(each.since)}{repeats}"
        yield f"    key {each.key}"
        yield f"    {each.reason or 'no reason recorded'}"
    yield f"{len(held)} held in doubt"


def _as_data(held: InDoubtMessage) -> Mapping[str, object]:
    return with_instants(held._asdict()) | {"channel": channel_of(held.provider)}
