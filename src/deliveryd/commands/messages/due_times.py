"""What happens when a message is due that waits for its window, a budget or a cap: by the file's rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from deliveryd.config import Config
from deliveryd.journal.sql.history import MessageRecord
from deliveryd.model import NEVER, SECOND, Settings, channel_of, format_duration
from deliveryd.options.quotas import format_quota
from deliveryd.rules.windows import LOOKED_AHEAD, WindowRule

_MINUTE = 60 * SECOND

_SOONER = "to have it sent before, raise that and run deliveryd reload"


class DueTime(NamedTuple):
    """What happens then, and what decides it."""

    what: str
    facts: tuple[str, ...]


def due_of(config: Config, message: MessageRecord, settings: Settings | None) -> DueTime | None:
    """Return what happens when a message is due; None: it waits for something else, or that isn't known.

    `settings` are those of the message; None: the disk cache doesn't have them.
    """
    due_at, settings_id = message.due_at, message.settings_id
    kind, _, name = (message.waits_for or "").partition(" ")
    if due_at is None or settings_id is None:
        return None
    expires = due_at in _expiries(config, message, settings)
    if kind == "window":
        return _window(config, message, due_at, settings_id, expires=expires)
    if kind == "budget":
        for budget in config.budgets.all:
            if budget.name == name:
                expires = expires or budget.share(due_at - 1).until != due_at
                fact = f"{budget.place}: {format_quota(budget.quota)}; {_SOONER}"
                return DueTime(_what(expires, "the budget has a new period"), (fact,))
    if kind == "cap":
        for cap in config.caps.all:
            if cap.name == name:
                within = format_duration(cap.share.per / SECOND)
                fact = f"{cap.place}: {cap.share.most} messages per customer within {within}; {_SOONER}"
                is_known = expires or settings is not None
                return DueTime(
                    _what(expires, "its customer may get more by the cap", is_known=is_known), (fact,)
                )
    return None


def _window(
    config: Config, message: MessageRecord, due_at: int, settings_id: int, *, expires: bool
) -> DueTime | None:
    rules = [*_rules(config, message, settings_id)]
    if not rules:
        return None
    opening = [] if expires else [rule for rule in rules if _opens_at(rule, due_at)]
    named = " or ".join(f"rules.{rule.place}" for rule in opening or rules)
    facts = (f"its window is that of {named}",)
    if due_at >= NEVER:
        return DueTime(f"its window doesn't open within {LOOKED_AHEAD} days", facts)
    if not expires and not opening:
        return DueTime("it expires then, before its window opens, or is looked at again", facts)
    return DueTime(_what(expires, "its window opens"), facts)


def _rules(config: Config, message: MessageRecord, settings_id: int) -> Iterator[WindowRule]:
    """Yield the rules with a window for a message on the channels that it may take, each once."""
    channels = config.channels
    names = [name for name in channels.order if name in channels.configured]
    if message.lane is not None:
        names = [channel_of(message.lane)]
    found = {
        rule.place: rule
        for name in names
        if (rule := config.windows.rule_for(settings_id, name)) is not None and not rule.window.is_always
    }
    yield from found.values()


def _opens_at(rule: WindowRule, instant: int) -> bool:
    """Whether a window may open at an instant: in a zone that isn't known, at any whole minute."""
    if rule.zone is None or instant >= NEVER:
        return instant % _MINUTE == 0
    return rule.window.opening(instant - 1, rule.zone) == instant


def _expiries(config: Config, message: MessageRecord, settings: Settings | None) -> Iterator[int]:
    """Yield the instant at which the message counts as expired, as far as it is known."""
    if settings is not None and settings.expires_at is not None:
        yield settings.expires_at + 1
    elif (lifetime := config.content.default_lifetime) is not None:
        yield message.taken_at + int(lifetime * SECOND) + 1


def _what(expires: bool, event: str, *, is_known: bool = True) -> str:
    if expires:
        return f"it expires then, before {event}"
    return f"{event} then" if is_known else f"{event} then, or it expires"
