"""Cautions of `check` about channels: keys that have no effect, and what removed providers left."""

from __future__ import annotations

from collections.abc import Iterator

from deliveryd.commands.check.findings import Finding, Level
from deliveryd.commands.common.shared_journal import known_providers
from deliveryd.config import Config
from deliveryd.errors import JournalError
from deliveryd.journal.attention import LeftBehind
from deliveryd.journal.opening import open_reader


def channel_cautions(config: Config) -> Iterator[Finding]:
    """Yield the cautions that need no file and no connection."""
    yield from _last_deadlines(config)
    yield from _no_weights(config)


def _last_deadlines(config: Config) -> Iterator[Finding]:
    for name, channel in config.channels.configured.items():
        if channel.common.receipt_deadline is not None and not config.channels.has_later(name):
            text = "has no effect, since no channel comes after it in channels.order"
            yield Finding(f"channels.{name}.receipt_deadline", Level.HINT, text)


def _no_weights(config: Config) -> Iterator[Finding]:
    for name, channel in config.channels.configured.items():
        enabled = [provider for provider in channel.providers.values() if provider.common.enabled]
        if not enabled:
            text = "none of its providers is enabled, so nothing is sent on it"
            yield Finding(f"channels.{name}", Level.HINT, text)
        elif len(enabled) > 1 and not any(provider.common.weight for provider in enabled):
            text = "all weights are 0, which has the effect of equal weights"
            yield Finding(f"channels.{name}.providers", Level.HINT, text)


def left_behind(config: Config) -> Iterator[Finding]:
    """Warn of what the journal has of providers that nobody has; the journal is only read."""
    try:
        providers = {*config.channels.providers, *known_providers(config)}
        found = open_reader(config.journal.place).left_behind(providers)
    except JournalError:  # reported with the journal, or there is none yet
        return
    for each in found:
        yield Finding("channels", Level.WARNING, _told(each))


def _told(left: LeftBehind) -> str:
    counted = (
        (left.waiting, "waiting, which another provider takes"),
        (left.in_doubt, "in doubt, which are held"),
        (left.unconfirmed, "with a receipt deadline, which is dropped"),
    )
    parts = ", ".join(f"{count:,} {words}" for count, words in counted if count)
    return (
        f"the journal has messages of {left.provider}, which isn't configured: {parts};"
        " to finish them, configure it again with enabled = false"
    )
