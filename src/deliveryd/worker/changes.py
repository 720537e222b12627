"""What differs between two configurations, and which differences need a restart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from deliveryd.channels.options import ChannelConfig, ProviderConfig
from deliveryd.config import Config
from deliveryd.directory.file_options import FileOptions
from deliveryd.runtime.secret_file import SecretFile

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

LARGEST_FILE = 1 << 20
"""Bytes of a secret or a certificate that are compared at most."""

Digests = Mapping[str, bytes]
"""The secrets and certificates of each part, as a digest: `service`, `customers`, or a provider's place."""


class Change(NamedTuple):
    """A key or a table that differs, and how."""

    key: str
    what: str = "changed"

    def __str__(self) -> str:
        """Return it as text for operators."""
        return self.key if self.what == "changed" else f"{self.key} ({self.what})"


ADDED, REMOVED, NEW_FILES = "added", "removed", "new secrets or certificates"


def changes(before: Config, after: Config, old: Digests, new: Digests) -> list[Change]:
    """Return what differs, in the order of the file's tables."""
    found: list[Change] = []
    for table in Config.model_fields:
        if table not in ("channels", "customers"):
            found += _fields(table, getattr(before, table), getattr(after, table))
    found += _fields("customers", before.customers, after.customers)
    found += _fields("customers", before.customers.options, after.customers.options)
    found += _fields("channels", before.channels, after.channels)
    found += _channels(before.channels.configured, after.channels.configured)
    found += [Change(part, NEW_FILES) for part, digest in new.items() if old.get(part, digest) != digest]
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


def is_same_adapter(before: ProviderConfig, after: ProviderConfig) -> bool:
    """Whether the adapter of a provider needn't be opened anew, as far as its table says."""
    return (
        before.block == after.block
        and before.common.adapter == after.common.adapter
        and before.common.timeout == after.common.timeout
        and before.options == after.options
    )


def digests(config: Config) -> Digests:
    """Read all secrets and certificates that a worker uses."""
    found = {"service": _digest(config.service)}
    if not isinstance(config.customers.options, FileOptions):  # which looks for changes by itself
        found["customers"] = _digest(config.customers.options)
    for provider in config.channels.providers.values():
        found[provider.place] = _digest(provider.options)
    return found


def _digest(value: object) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path in _files(value):
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_FILE)
        except OSError:  # a start would complain of it
            content = b""
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


def _files(value: object) -> Iterator[Path]:
    """Yield the files that options name."""
    match value:
        case SecretFile():
            yield value.path
        case Path():
            yield value
        case BaseModel():
            for name in type(value).model_fields:
                yield from _files(getattr(value, name))
        case dict():
            for each in value.values():
                yield from _files(each)
        case list() | tuple() | set() | frozenset():
            for each in value:
                yield from _files(each)
