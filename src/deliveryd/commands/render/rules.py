"""`deliveryd rules`: what the rules of the configuration mean for a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from deliveryd.model import NEVER, SECOND, Customer, format_duration, format_instant
from deliveryd.options.quotas import format_quota
from deliveryd.rules.priorities import PRIORITY_NAMES
from deliveryd.worker.phones import destinations_of
from deliveryd.worker.wiring import open_providers

rules = CommandGroup(
    no_args_is_help=True, help="Show what the rules of the configuration mean for a message."
)


@rules.callback()
def _group() -> None: ...


_MORE = {
    "next": "more takes the next provider or channel",
    "wait": "more waits",
    "error": "more ends as error",
}
"""What becomes of messages beyond a limit."""


class _Limit(NamedTuple):
    """What a message counts for on a channel; `until` is when the present period of a budget ends."""

    name: str
    quota: str
    place: str
    then: str
    until: int | None = None

    @property
    def text(self) -> str:
        until = "" if self.until is None else f" until {format_instant(self.until)}"
        return f"counts for the {self.name}: {self.quota}{until}, {_MORE[self.then]}: {self.place}"

    @property
    def data(self) -> Mapping[str, object]:
        until = None if self.until is None else format_instant(self.until)
        return {**self._asdict(), "until": until}


class _Outcome(NamedTuple):
    """What holds on one channel. `rule` is its place among the rules; None: no rule has a window for it."""

    channel: str
    rule: int | None
    zone: str
    opens_at: int
    now: int
    limits: Sequence[_Limit] = ()
    refused: Mapping[str, str] = {}
    """Why providers aren't sent the customer's number."""
    is_refused: bool = False
    """Whether none of them is."""

    @property
    def text(self) -> str:
        if self.is_refused:
            return f"is not sent: {', '.join(dict.fromkeys(self.refused.values()))}"
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

    Shows its priority, and for each channel whether its window is open or when it opens, and for which
    budgets and caps it counts. With a customer, it also shows which providers aren't sent their phone number.
    Nothing is sent, and no running worker is asked what is used of the limits.
    """
    loaded, now = load_as_owner(config), instant_of(at)
    found, refused = (None, {}) if customer is None else anyio.run(_looked_up, loaded, customer)
    zone = None if found is None else found.fields.get(ZONE_FIELD)
    outcomes = [
        _with_refusals(loaded, refused, outcome) for outcome in _outcomes(loaded, settings, zone, now)
    ]
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
        *(line for outcome in outcomes for line in _lines(outcome, width)),
    )


def _lines(outcome: _Outcome, width: int) -> Iterator[str]:
    yield f"{outcome.channel:{width}}  {outcome.text}"
    for provider, why in outcome.refused.items() if not outcome.is_refused else ():
        yield f"{'':{width}}  not by {provider}: {why}"
    for limit in outcome.limits:
        yield f"{outcome.channel:{width}}  {limit.text}"


async def _looked_up(config: Config, customer_id: int) -> tuple[Customer | None, Mapping[str, str]]:
    """Return a customer, and why providers aren't sent their number, by the providers that aren't."""
    customer = await customer_of(config, customer_id)
    providers = open_providers(config)
    try:
        found = {
            identity: refusal
            for channel in config.channels.configured.values()
            for identity, each in ((each.identity, each) for each in channel.providers.values())
            if customer is not None
            and (destinations := destinations_of(channel, each, providers[identity])) is not None
            and providers[identity].reaches(customer)
            and (refusal := destinations.refusal(customer)) is not None
        }
    finally:
        for provider in providers.values():
            await provider.aclose()
    return customer, found


def _with_refusals(config: Config, refused: Mapping[str, str], outcome: _Outcome) -> _Outcome:
    """The outcome with the providers of its channel that aren't sent the number."""
    own = config.channels.configured[outcome.channel].providers.values()
    here = {each.identity: refused[each.identity] for each in own if each.identity in refused}
    return outcome._replace(refused=here, is_refused=len(here) == len(own))


def _outcomes(config: Config, settings_id: int, zone: str | None, now: int) -> Iterator[_Outcome]:
    windows = config.windows
    for channel in (name for name in config.channels.order if name in config.channels.configured):
        rule = windows.rule_for(settings_id, channel)
        place = None if rule is None else rule.place
        known = "UTC" if rule is None else str(windows.zone_of(rule, zone))
        opening = windows.opening(settings_id, channel, zone, now)
        limits = [*_limits(config, settings_id, channel, now)]
        yield _Outcome(channel, place, known, opening, now, limits)


def _limits(config: Config, settings_id: int, channel: str, now: int) -> Iterator[_Limit]:
    """Yield the caps and budgets that count what is sent with these settings on a channel."""
    for cap in config.caps.of(settings_id):
        quota = f"{cap.share.most} messages per customer within {format_duration(cap.share.per / SECOND)}"
        yield _Limit(f"cap of {cap.name}", quota, cap.place, cap.over)
    providers = config.channels.configured[channel].providers.values()
    budgets = config.budgets
    found = {each.place: each for one in providers for each in budgets.of(settings_id, one.identity)}
    for budget in found.values():
        yield _Limit(
            f"budget of {budget.name}", format_quota(budget.quota), budget.place, budget.spent,
            budget.share(now).until,
        )  # fmt: skip


def _data(outcome: _Outcome) -> Mapping[str, object]:
    return {
        "channel": outcome.channel,
        "rule": outcome.rule,
        "zone": outcome.zone,
        "may_be_sent": outcome.opens_at == outcome.now and not outcome.is_refused,
        "refused": dict(outcome.refused),
        "opens_at": None if outcome.opens_at == NEVER else format_instant(outcome.opens_at),
        "limits": [limit.data for limit in outcome.limits],
    }


def _local(instant: int, zone: str) -> str:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # loaded only where there is a window

    moment = datetime.fromtimestamp(instant // SECOND, UTC).astimezone(ZoneInfo(zone))
    return f"{moment:%a %Y-%m-%d %H:%M} {zone}"
