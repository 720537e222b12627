"""Cautions of `check` about channels: keys that have no effect, and expressions that may take too long."""

from __future__ import annotations

from collections.abc import Iterator

from deliveryd.channels.options import ProviderConfig
from deliveryd.config import Config
from deliveryd.errors import JournalError
from deliveryd.http.finder import HEADER, QUERY
from deliveryd.inspection.findings import Finding, Level
from deliveryd.journal.attention import LeftBehind
from deliveryd.journal.opening import open_reader
from deliveryd.options.expression import takes_exponential_time

_EXPRESSIONS = frozenset({"matches"})
_PLACES = frozenset(
    {"at", "provider_id", "reason", "reference", "status", "code", "recipient", "reported_at"}
)
"""Keys whose value is a JSON Pointer, `header:NAME`, `query:NAME` or an expression."""


def channel_cautions(config: Config) -> Iterator[Finding]:
    """Yield the cautions that need no file and no connection."""
    yield from _last_deadlines(config)
    yield from _no_weights(config)
    for provider in config.channels.providers.values():
        yield from _slow_expressions(provider)


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


def _slow_expressions(provider: ProviderConfig) -> Iterator[Finding]:
    for key, expression in _expressions(provider.options.model_dump(by_alias=True)):
        if takes_exponential_time(expression):
            text = (
                "the expression has a repeat within a repeat, and can take exponential time on a text that"
                " somebody else sends: let only one of them repeat, as in (?:a+,)+ instead of (?:a+,?)+"
            )
            yield Finding(f"{provider.place}.{key}", Level.WARNING, text)


def _expressions(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the regular expressions of an adapter's options, by key."""
    if isinstance(value, str):
        name = key.rpartition(".")[2]
        if name in _EXPRESSIONS or (name in _PLACES and not value.startswith(("/", HEADER, QUERY))):
            yield key, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _expressions(each, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _expressions(each, key if isinstance(each, str) else f"{key}.{index}")


def left_behind(config: Config) -> Iterator[Finding]:
    """Warn of what the journal has of providers that aren't configured; the journal is only read."""
    try:
        found = open_reader(config.journal.place).left_behind(config.channels.providers)
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
