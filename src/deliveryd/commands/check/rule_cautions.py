"""Hints of `check` at rules, budgets and countries that can't do what they say. Makes no connections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import time

from deliveryd.channels.destination_rules import rules_of
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.commands.check.findings import Finding, Level
from deliveryd.config import Config
from deliveryd.model import format_duration
from deliveryd.rules.windows import DAYS, Window
from deliveryd.worker.phones import reads_phones

_DAY = 86400
_WEEK = len(DAYS) * _DAY


def _unserved_countries(config: Config) -> Iterator[Finding]:
    """Hint at countries of a channel that none of its providers serves, and at numbers that may have no +."""
    for name, channel in config.channels.configured.items():
        own = [
            [rule for rule in rules_of(channel, each) if rule.place != f"channels.{name}"]
            for each in channel.providers.values()
            if each.common.enabled
        ]
        for country in channel.common.countries or ():
            if own and not any(all(rule.serves(country) for rule in rules) for rules in own):
                text = f"{country}: no provider of the channel serves it, so nothing is sent there"
                yield Finding(f"channels.{name}.countries", Level.HINT, text)
        for provider in channel.providers.values():
            for rule in rules_of(channel, provider)[:1]:
                if isinstance(provider.options, HttpChannelOptions) and not reads_phones(provider):
                    text = (
                        "addresses that don't begin with + aren't sent to, because of"
                        f" {rule.keys}: write the filter e164, as {{customer.phone|e164}}"
                    )
                    yield Finding(provider.place, Level.HINT, text)


def _rules_without_effect(config: Config) -> Iterator[Finding]:
    """Hint at windows behind others that catch all messages which they name."""
    rules = config.windows.rules
    for number, rule in enumerate(rules):
        for before in rules[:number]:
            if _contains(before.settings, rule.settings) and _contains(before.channels, rule.channels):
                text = (
                    f"has no effect: rules.{before.place} names all messages that it names, and the first"
                    " window counts; move it up, or remove it"
                )
                yield Finding(f"rules.{rule.place}.window", Level.HINT, text)
                break


def _contains(all_: frozenset[int] | frozenset[str], some: frozenset[int] | frozenset[str]) -> bool:
    """Whether a rule for these is one for those as well; an empty set names all."""
    return not all_ or (bool(some) and all_ >= some)


def _empty_budgets(config: Config) -> Iterator[Finding]:
    """Hint at budgets of nothing."""
    for budget in config.budgets.all:
        if budget.quota.most == 0:
            text = "is 0, so no message that counts for it is sent"
            yield Finding(f"{budget.place}.budget", Level.HINT, text)


def _short_lifetimes(config: Config) -> Iterator[Finding]:
    """Hint at messages that expire while they wait for a window or a cap, by the default lifetime."""
    lifetime, key = config.content.default_lifetime, "content.default_lifetime"
    if lifetime is None:
        return
    for rule in config.windows.rules:
        closed = _longest_closed(rule.window)
        if not rule.sends_outside and lifetime < closed:
            text = (
                f"is shorter than the {format_duration(closed)} for which the window of rules.{rule.place} is"
                ' closed, so messages may expire before it opens: set outside = "send" there, or a longer'
                " lifetime"
            )
            yield Finding(key, Level.HINT, text)
    for place, options in enumerate(config.rules):
        cap = options.cap
        if cap is not None and cap.over == "wait" and lifetime < cap.per:
            text = (
                f"is shorter than the {format_duration(cap.per)} of rules.{place}.cap, so messages that wait"
                ' for it may expire before: set over = "error" there, or a longer lifetime'
            )
            yield Finding(key, Level.HINT, text)


def _longest_closed(window: Window) -> float:
    """Return the seconds for which a window is closed at the longest in a week without holidays."""
    begin = _seconds(window.begin)
    opened = (_seconds(window.end) - begin) % _DAY or _DAY
    begins = [day * _DAY + begin for day in sorted(window.days)]
    after = [*begins[1:], begins[0] + _WEEK]
    return max(later - first - opened for first, later in zip(begins, after, strict=True))


def _seconds(at: time) -> int:
    return at.hour * 3600 + at.minute * 60


def _nothing_next(config: Config) -> Iterator[Finding]:
    """Hint at budgets that are to send messages elsewhere, where there is nothing else."""
    for place, rule in enumerate(config.rules):
        channels = rule.channels or tuple(config.channels.configured)
        if rule.budget is not None and rule.spent == "next" and not _comes_after(config, channels):
            yield _no_next(f"rules.{place}")
    for name, channel in config.channels.configured.items():
        if _comes_after(config, (name,)):
            continue
        common = channel.common
        if common.budget is not None and common.spent == "next":
            yield _no_next(f"channels.{name}")
        enabled = [each for each in channel.providers.values() if each.common.enabled]
        for each in enabled if len(enabled) == 1 else ():
            if each.common.budget is not None and each.common.spent == "next":
                yield _no_next(each.place)


def _comes_after(config: Config, channels: Collection[str]) -> bool:
    """Whether another configured channel comes after the first of these in the order."""
    order = [name for name in config.channels.order if name in config.channels.configured]
    first = next((place for place, name in enumerate(order) if name in channels), 0)
    return any(name not in channels for name in order[first:])


def _no_next(table: str) -> Finding:
    text = 'is "next", but no provider or channel comes after, so messages wait for the next period'
    return Finding(f"{table}.spent", Level.HINT, text)


def _outside_of_channels(config: Config) -> Iterator[Finding]:
    """Hint at countries of a provider that its channel doesn't send to, and at weights without effect."""
    for channel in config.channels.configured.values():
        for provider in channel.providers.values():
            rules = rules_of(channel, provider)
            wider = [rule for rule in rules if rule.place != provider.place]
            for country in provider.common.countries or ():
                for rule in wider:
                    if not rule.serves(country):
                        text = f"{country}: not in {rule.keys}, so nothing is sent there"
                        yield Finding(f"{provider.place}.countries", Level.HINT, text)
            for country in provider.common.weights or ():
                found = next((rule for rule in rules if not rule.serves(country)), None)
                if found is not None:
                    text = f"{country}: has no effect, since it isn't in {found.keys}"
                    yield Finding(f"{provider.place}.weights", Level.HINT, text)


RULE_CAUTIONS: Sequence[Callable[[Config], Iterator[Finding]]] = (
    _rules_without_effect,
    _empty_budgets,
    _short_lifetimes,
    _nothing_next,
    _unserved_countries,
    _outside_of_channels,
)
"""All of these, in the order in which they are printed."""
