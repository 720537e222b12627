"""What differs between two configurations, and which differences need a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from deliveryd.channels.options import ChannelConfig, ProviderConfig
from deliveryd.config import Config
from deliveryd.worker.outside import Sources

IN_PLACE = frozenset(
    {
        "channels", "content", "customers", "entities", "log", "run", "service",
        "events.batch_size", "events.flush_interval", "events.intermediate",
        "journal.allow_shared_folder", "journal.reserve", "journal.retention",
        "queue.batch_size", "queue.max_in_flight", "queue.max_paused", "queue.max_poll_interval",
        "queue.max_waiting", "queue.poll_interval",
        "receipts.max_body", "receipts.public_url",
        "settings.stale_while_down", "settings.ttl",
    }
)  # fmt: skip
"""The tables and keys that a reload applies. Any other key needs a restart."""


class Change(NamedTuple):
    """A key or a table that differs, and how."""

    key: str
    what: str = "changed"

    def __str__(self) -> str:
        """Return it as text for operators."""
        return self.key if self.what == "changed" else f"{self.key} ({self.what})"


ADDED, REMOVED, NEW_FILES = "added", "removed", "new secrets or certificates"


def changes(before: Config, after: Config, old: Sources, new: Sources) -> list[Change]:
    """Return what differs, in the order of the file's tables."""
    found: list[Change] = []
    for table in Config.model_fields:
        if table not in ("channels", "customers"):
            found += _fields(table, getattr(before, table), getattr(after, table))
    found += _fields("customers", before.customers, after.customers)
    found += _fields("customers", before.customers.options, after.customers.options)
    found += _fields("channels", before.channels, after.channels)
    found += _channels(before.channels.configured, after.channels.configured)
    found += [
        Change(part, NEW_FILES)
        for part, source in new.items()
        if part in old and old[part].files != source.files
    ]
    return list(dict.fromkeys(found))


def needs_restart(change: Change) -> bool:
    """Whether a change can't be applied to a running worker."""
    return not ({change.key, change.key.partition(".")[0]} & IN_PLACE)


def _fields(place: str, before: BaseModel, after: BaseModel) -> Iterator[Change]:
    if type(before) is not type(after):
        yield Change(f"{place}.source" if place == "customers" else place)
        return
    for name, field in type(after).model_fields.items():
        if not field.exclude and getattr(before, name) != getattr(after, name):
            yield Change(f"{place}.{field.alias or name}")


def _channels(before: Mapping[str, ChannelConfig], after: Mapping[str, ChannelConfig]) -> Iterator[Change]:
    for name, channel in after.items():
        if name not in before:
            yield Change(f"channels.{name}", ADDED)
        else:
            yield from _fields(f"channels.{name}", before[name].common, channel.common)
            yield from _providers(before[name].providers, channel.providers)
    yield from (Change(f"channels.{name}", REMOVED) for name in before if name not in after)


def _providers(before: Mapping[str, ProviderConfig], after: Mapping[str, ProviderConfig]) -> Iterator[Change]:
    for name, provider in after.items():
        if name not in before:
            yield Change(provider.place, ADDED)
        else:
            yield from _fields(provider.place, before[name].common, provider.common)
            yield from _fields(provider.place, before[name].options, provider.options)
    yield from (Change(each.place, REMOVED) for name, each in before.items() if name not in after)
