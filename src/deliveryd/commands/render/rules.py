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
from deliveryd.commands.render.preview import cached_settings, customer_of, read_stopped, why_unreached
from deliveryd.config import Config
from deliveryd.delivery.choice import Idle
from deliveryd.delivery.limits import SendingLimits
from deliveryd.delivery.message import UNRENDERED, Delivery, is_expired
from deliveryd.delivery.safety import Safety
from deliveryd.model import (
    NEVER,
    SECOND,
    Customer,
    Entry,
    Settings,
    channel_of,
    format_duration,
    format_instant,
)
from deliveryd.options.quotas import format_quota
from deliveryd.options.safety import limits_text
from deliveryd.rendering.content import CompiledSettings
from deliveryd.rules.priorities import PRIORITY_NAMES
from deliveryd.transitions import expiry_details
from deliveryd.worker.phones import phone_providers
from deliveryd.worker.wiring import build_choices, compiler, open_providers

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
    """Why providers of the channel aren't sent the message."""
    why_not: str | None = None
    """Why none of them is; None: one is."""
    expires_at: int | None = None
    """When the message expires, if it does before the window opens."""
    lives_by: str = ""
    """Where its expiry is from."""
    is_sent_outside: bool = False

    @property
    def text(self) -> str:
        if self.why_not is not None:
            return f"is not sent: {self.why_not}"
        if self.is_sent_outside:
            return f"is sent at once: it would expire before its window opens ({self.lives_by}){self.because}"
        if self.expires_at is not None:
            expires = f"expires at {format_instant(self.expires_at)}"
            return f"{expires}, before its window opens ({self.lives_by}){self.because}"
        if self.opens_at == self.now:
            return "may be sent" + (self.because or ": no rule has a window for it")
        if self.opens_at == NEVER:
            return f"is never sent{self.because}"
        return f"waits until {_local(self.opens_at, self.zone)}{self.because}"

    @property
    def may_be_sent(self) -> bool:
        return self.why_not is None and (self.is_sent_outside or self.opens_at == self.now)

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
    budgets and caps it counts, or that nothing is sent there, and why: for a budget that is smaller than any
    message, and with --customer also because of their address, [safety] or the list of those who stopped a
    channel. The message counts as taken then; it expires by its settings if the disk cache has them, else by
    content.default_lifetime. Nothing is sent, and no running worker is asked what is used of the limits.
    """
    loaded, now = load_as_owner(config), instant_of(at)
    cached = anyio.run(cached_settings, loaded, settings)
    compiled = compiler(loaded)(cached or Settings(settings, None, {}))
    found, unreached = (None, {}) if customer is None else anyio.run(_looked_up, loaded, customer)
    message = Delivery(Entry(1, settings, customer or 0, {}, taken_at=now), compiled)
    message.of(found)
    outcomes = [*_outcomes(loaded, message, unreached, now)]
    if as_data:
        rank = PRIORITY_NAMES[loaded.priorities.rank(settings)]
        print_json({"priority": rank, "channels": [_data(outcome) for outcome in outcomes]})
        return
    width = max(len(outcome.channel) for outcome in outcomes)
    who = "not given" if customer is None else str(customer) + ("" if found else ", not in the directory")
    priority = PRIORITY_NAMES[loaded.priorities.rank(settings)]
    if customer is None and loaded.safety.limits:
        print_lines(f"this installation {limits_text(*loaded.safety.figures)}")
    print_lines(
        f"settings {settings}, priority {priority}",
        f"customer {who}, zone {message.zone or 'not known'}, at {format_instant(now)}",
        *(line for outcome in outcomes for line in _lines(outcome, width)),
    )


def _lines(outcome: _Outcome, width: int) -> Iterator[str]:
    yield f"{outcome.channel:{width}}  {outcome.text}"
    for provider, why in outcome.refused.items() if outcome.why_not is None else ():
        yield f"{'':{width}}  not by {provider}: {why}"
    for limit in outcome.limits:
        yield f"{outcome.channel:{width}}  {limit.text}"


async def _looked_up(config: Config, customer_id: int) -> tuple[Customer | None, Mapping[str, str]]:
    """Return a customer, and why providers don't send to them, by the providers that don't."""
    customer = await customer_of(config, customer_id)
    providers = open_providers(config)
    try:
        stopped, safety = read_stopped(config), Safety(config.safety, phone_providers(config))
        choices = build_choices(config, providers, dict.fromkeys(providers, Idle()), safety)
        found = {
            name: why_unreached(
                choices[channel_of(name)], name, customer_id, customer, stopped=stopped, safety=safety
            )
            for name in providers
        }
    finally:
        for provider in providers.values():
            await provider.aclose()
    if customer is not None and customer.flaw is not None:
        return customer, dict.fromkeys(found, customer.flaw)
    return customer, {name: why for name, why in found.items() if why is not None}


def _outcomes(
    config: Config, message: Delivery, unreached: Mapping[str, str], now: int
) -> Iterator[_Outcome]:
    windows, settings_id = config.windows, message.entry.settings_id
    unused = SendingLimits(b"")
    unused.follow(config.budgets, config.caps)
    for channel in (name for name in config.channels.order if name in config.channels.configured):
        rule = windows.rule_for(settings_id, channel)
        place = None if rule is None else rule.place
        known = "UTC" if rule is None else str(windows.zone_of(rule, message.zone))
        opening = windows.opening(settings_id, channel, message.zone, now)
        own = config.channels.configured[channel].providers.values()
        enabled = [each.identity for each in own if each.common.enabled]
        refused = {
            name: why
            for name in enabled
            if (why := unreached.get(name) or _too_small(unused, message, name, now)) is not None
        }
        why_not = None
        if message.expires_at is not None and is_expired(message.expires_at, now):
            why_not = expiry_details(message.expires_at)
        elif len(refused) == len(enabled):
            why_not = ", ".join(dict.fromkeys(refused.values())) or "no provider is enabled"
        sent_by = [name for name in enabled if name not in refused] if why_not is None else []
        limits = [*_limits(config, settings_id, sent_by, now)]
        outcome = _Outcome(channel, place, known, opening, now, limits, refused, why_not)
        yield _expiring(outcome, message, is_sent_outside=windows.sends_outside(settings_id, channel))


def _expiring(outcome: _Outcome, message: Delivery, *, is_sent_outside: bool) -> _Outcome:
    """The outcome of a message that may expire before its window opens, if it does."""
    expires_at, now = message.expires_at, outcome.now
    if expires_at is None or outcome.opens_at == now or expires_at > outcome.opens_at:
        return outcome
    has_own = isinstance(message.settings, CompiledSettings) and message.settings.expires_at is not None
    return outcome._replace(
        expires_at=expires_at,
        lives_by="delivery.expiresAt of its settings" if has_own else "content.default_lifetime",
        is_sent_outside=is_sent_outside,
        limits=outcome.limits if is_sent_outside else (),
    )


def _too_small(unused: SendingLimits, message: Delivery, provider: str, now: int) -> str | None:
    """Return why a message is too large for a whole budget of a provider; None: it isn't.

    Its parts aren't known: it has one.
    """
    message.to(provider, UNRENDERED, message.customer)
    short = unused.shortage(message, now)
    if short is None:
        return None
    return f"it ends as error: {short.reason}" if short.then == "error" else short.reason


def _limits(config: Config, settings_id: int, providers: Sequence[str], now: int) -> Iterator[_Limit]:
    """Yield the caps and budgets that count what is sent with these settings by these providers."""
    for cap in config.caps.of(settings_id) if providers else ():
        quota = f"{cap.share.most} messages per customer within {format_duration(cap.share.per / SECOND)}"
        yield _Limit(f"cap of {cap.name}", quota, cap.place, cap.over)
    budgets = config.budgets
    found = {each.place: each for one in providers for each in budgets.of(settings_id, one)}
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
        "may_be_sent": outcome.may_be_sent,
        "why_not": outcome.why_not,
        "refused": dict(outcome.refused),
        "expires_at": None if outcome.expires_at is None else format_instant(outcome.expires_at),
        "opens_at": None if outcome.opens_at == NEVER else format_instant(outcome.opens_at),
        "limits": [limit.data for limit in outcome.limits],
    }


def _local(instant: int, zone: str) -> str:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # loaded only where there is a window

    moment = datetime.fromtimestamp(instant // SECOND, UTC).astimezone(ZoneInfo(zone))
    return f"{moment:%a %Y-%m-%d %H:%M} {zone}"
