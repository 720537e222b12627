"""`deliveryd rules`: what the rules of the configuration mean for a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import anyio
import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, AtOption, ConfigOption, identifier, instant_of
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.render.preview import customer_of
from deliveryd.config import Config
from deliveryd.delivery.message import ZONE_FIELD
from deliveryd.model import NEVER, SECOND, format_instant
from deliveryd.rules.priorities import PRIORITY_NAMES

rules = CommandGroup(
    no_args_is_help=True, help="Show what the rules of the configuration mean for a message."
)


@rules.callback()
def _group() -> None: ...


class _Outcome(NamedTuple):
    """What holds on one channel. `rule` is its place among the rules; None: no rule has a window for it."""

    channel: str
    rule: int | None
    zone: str
    opens_at: int
    now: int

    @property
    def text(self) -> str:
        if self.opens_at == self.now:
            return "may be sent" + (self.because or ": no rule has a window for it")
        if self.opens_at == NEVER:
            return f"is never sent{self.because}"
        return f"waits until {_local(self.opens_at, self.zone)}{self.because}"

    @property
    def because(self) -> str:
        return "" if self.rule is None else f": rules.{self.rule}"


@rules.command("test")
def try_rules(
    *,
    config: ConfigOption = USUAL_CONFIG,
    settings: Annotated[
        int, typer.Option("--settings", metavar="ID", parser=identifier, help="Settings of the message.")
    ],
    customer: Annotated[
        int | None,
        typer.Option(metavar="ID", parser=identifier, help="ID of a customer in the configured directory."),
    ] = None,
    at: AtOption = None,
    as_data: AsData = False,
) -> None:
    """Show when a message may be sent, and by which rule.

    Shows its priority, and for each channel whether its window is open or when it opens. Nothing is
    sent, and no running worker is asked.
    """
    loaded, now = load_as_owner(config), instant_of(at)
    found = None if customer is None else anyio.run(customer_of, loaded, customer)
    zone = None if found is None else found.fields.get(ZONE_FIELD)
    outcomes = list(_outcomes(loaded, settings, zone, now))
    if as_data:
        rank = PRIORITY_NAMES[loaded.priorities.rank(settings)]
        print_json({"priority": rank, "channels": [_data(outcome) for outcome in outcomes]})
        return
    width = max(len(outcome.channel) for outcome in outcomes)
    who = "not given" if customer is None else str(customer) + ("" if found else ", not in the directory")
    priority = PRIORITY_NAMES[loaded.priorities.rank(settings)]
    print_lines(
        f"settings {settings}, priority {priority}",
        f"customer {who}, zone {zone or 'not known'}, at {format_instant(now)}",
        *(f"{outcome.channel:{width}}  {outcome.text}" for outcome in outcomes),
    )


def _outcomes(config: Config, settings_id: int, zone: str | None, now: int) -> Iterator[_Outcome]:
    windows = config.windows
    for channel in (name for name in config.channels.order if name in config.channels.configured):
        rule = windows.rule_for(settings_id, channel)
        place = None if rule is None else rule.place
        known = "UTC" if rule is None else str(windows.zone_of(rule, zone))
        yield _Outcome(channel, place, known, windows.opening(settings_id, channel, zone, now), now)


def _data(outcome: _Outcome) -> Mapping[str, object]:
    return {
        "channel": outcome.channel,
        "rule": outcome.rule,
        "zone": outcome.zone,
        "may_be_sent": outcome.opens_at == outcome.now,
        "opens_at": None if outcome.opens_at == NEVER else format_instant(outcome.opens_at),
    }


def _local(instant: int, zone: str) -> str:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # loaded only where there is a window

    moment = datetime.fromtimestamp(instant // SECOND, UTC).astimezone(ZoneInfo(zone))
    return f"{moment:%a %Y-%m-%d %H:%M} {zone}"
