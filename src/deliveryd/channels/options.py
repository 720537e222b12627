"""The tables below `[channels]`: a channel's keys, its providers', and those of their adapters."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from deliveryd.channels.destination_options import Country, DestinationOptions, phones_problem
from deliveryd.channels.presets.catalogue import PresetReader
from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.channels.registry import AdapterKind, find_adapter
from deliveryd.model import BLOCKS, provider_identity
from deliveryd.options.file import ConfigFile
from deliveryd.options.quotas import BUDGET_MEANING, SPENT_MEANING, QuotaLimit, SpentChoice, check_spent
from deliveryd.options.suggestion import closest, suggestion
from deliveryd.options.tables import OnUse
from deliveryd.options.units import FilePath, Positive, RateLimit

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONFIG = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, defer_build=True)
_Table = Mapping[str, Any]


class _Given(NamedTuple):
    """The table of a provider, and where it stands."""

    identity: str
    name: str
    place: str
    table: _Table


class RetryOptions(BaseModel):
    """Retries of one message at one provider."""

    model_config = _CONFIG

    attempts: StrictInt = Field(15, ge=1, le=1000, description="attempts per message at this provider")
    base: Positive = Field(2.0, description="pause after the first failed attempt, then doubled")
    max: Positive = Field(600.0, description="longest pause between attempts")


class BreakerOptions(BaseModel):
    """When to stop attempts at a provider that keeps failing, but for probes."""

    model_config = _CONFIG

    failures: StrictInt = Field(
        10, ge=0, le=1_000_000, description="failed attempts in a row that open it; 0: never"
    )
    pause: Positive = Field(1.0, description="pause before the first probe, doubled after each that fails")
    max_pause: Positive = Field(60.0, description="longest pause between probes")

    @model_validator(mode="after")
    def _fits(self) -> BreakerOptions:
        if self.max_pause < self.pause:
            raise ValueError("max_pause must not be shorter than pause")
        return self


class ChannelTable(DestinationOptions, BaseModel):
    """The keys of a channel, whichever of its providers sends."""

    model_config = _CONFIG

    block: str | None = Field(None, description="block of the settings to send; left out: the channel's name")
    max_parts: StrictInt | None = Field(
        None, ge=1, le=255, description="most parts of an SMS; a longer text takes the next channel"
    )
    cost_guard: Annotated[float, Field(gt=1, le=1000, allow_inf_nan=False)] | None = Field(
        None,
        description="how many times as many SMS parts as before pause settings; left out: none do",
    )
    allow_premium: StrictBool = Field(False, description="send to premium-rate numbers too")
    transliterate: StrictBool = Field(False, description="replace typography if that keeps an SMS in GSM-7")
    unavailable_after: Positive = Field(
        900.0, description="how long all providers open to a message are down until it takes the next channel"
    )
    receipt_deadline: Positive | None = Field(
        None, description="time for a delivery to be reported; then the next channel; left out: none"
    )
    receipt_failed_then: Literal["error", "next"] = Field(
        "error",
        description="what a failure leads to that is reported after the acceptance",
    )
    slow_after: Positive | None = Field(
        None,
        description="time for a delivery; a provider that takes longer loses of its share; left out: none",
    )
    receipt_overdue: Positive = Field(
        3 * 86400.0, description="time after which a message without a report counts as overdue"
    )
    budget: QuotaLimit | None = Field(None, description=BUDGET_MEANING)
    spent: SpentChoice = Field("wait", description=SPENT_MEANING)

    @model_validator(mode="after")
    def _has_budget(self) -> Self:
        check_spent(self)
        return self


class ProviderTable(DestinationOptions, BaseModel):
    """The keys of every provider; all others belong to its adapter."""

    model_config = ConfigDict(extra="allow", frozen=True, coerce_numbers_to_str=True, defer_build=True)

    adapter: str = Field(description='"http", "smtp", "webpush", a preset, or a plug-in')
    weight: StrictInt = Field(
        1, ge=0, le=1_000_000, description="share of the channel's messages; 0: only when no other can"
    )
    weights: Mapping[Country, Annotated[StrictInt, Field(ge=0, le=1_000_000)]] | None = Field(
        None, description="weights for phone numbers of some countries: { DE = 3 }; left out: weight for all"
    )
    enabled: StrictBool = Field(True, description="false: nothing new is sent; doubts are settled")
    concurrency: StrictInt = Field(
        100,
        ge=1,
        le=10_000,
        description="attempts under way at a time",
    )
    rate: RateLimit | None = Field(
        None,
        description='attempts that start per time, or SMS parts, at all workers: "50/s" or "50 parts/s"',
    )
    timeout: Positive = Field(10.0, description="for one whole attempt")
    on_in_doubt: Literal["resend", "hold"] = Field(
        "resend", description="repeat it under its key, or hold it"
    )
    retry: OnUse[RetryOptions] = Field(
        RetryOptions.model_construct(), description="when the provider can't take a message now"
    )
    breaker: OnUse[BreakerOptions] = Field(
        BreakerOptions.model_construct(), description="when the provider keeps failing"
    )
    budget: QuotaLimit | None = Field(None, description=BUDGET_MEANING)
    spent: SpentChoice = Field("wait", description=SPENT_MEANING)

    @model_validator(mode="after")
    def _has_budget(self) -> Self:
        check_spent(self)
        return self


_OF_BOTH = frozenset({"budget", "spent", *DestinationOptions.model_fields})
"""Keys that a channel and each of its providers may have; in a table for both they are the channel's."""


ONLY_FOR_SMS = frozenset({"cost_guard", "max_parts", "transliterate"})
"""Keys of a channel that other blocks than sms don't have."""


class ProviderConfig(BaseModel):
    """One provider of a channel: the keys of every provider, and those of its adapter.

    `place` is the prefix of its keys in the file.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, defer_build=True)

    identity: str
    name: str
    channel: str
    block: str
    place: str
    common: OnUse[ProviderTable]
    options: BaseModel

    @property
    def receipt(self) -> ReceiptOptions | None:
        """How the provider reports; None: it doesn't."""
        found: ReceiptOptions | None = getattr(self.options, "receipt", None)
        return found


class ChannelConfig(BaseModel):
    """One channel: its name, the block that it sends, its keys, and its providers by their names."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, defer_build=True)

    name: str
    block: str
    common: OnUse[ChannelTable]
    providers: Mapping[str, OnUse[ProviderConfig]]


class ChannelsOptions(BaseModel):
    """The channels and their order."""

    model_config = _CONFIG

    order: tuple[str, ...] = Field(
        BLOCKS,
        min_length=1,
        description="the first that can send does; then the next",
    )
    presets_dir: FilePath | None = Field(None, description="folder with presets of your own")
    configured: Mapping[str, OnUse[ChannelConfig]] = Field(default_factory=dict, exclude=True)
    named: tuple[str, ...] = Field((), exclude=True)
    """The identities of all providers that the file has, those with mistakes too."""

    @property
    def providers(self) -> Mapping[str, ProviderConfig]:
        """Return the providers of all channels by their identities."""
        return {
            provider.identity: provider
            for channel in self.configured.values()
            for provider in channel.providers.values()
        }

    @property
    def reporting(self) -> Mapping[str, ReceiptOptions]:
        """Return how providers report, by their identities, of those that do."""
        return {
            identity: provider.receipt
            for identity, provider in self.providers.items()
            if provider.receipt is not None
        }

    @property
    def overdue(self) -> Mapping[str, float]:
        """Return after how many seconds messages of providers that confirm are overdue, by identities."""
        return {
            name: self.configured[self.providers[name].channel].common.receipt_overdue
            for name, receipt in self.reporting.items()
            if receipt.confirms
        }

    @property
    def slow_after(self) -> Mapping[str, float]:
        """Return after how many seconds a delivery counts as slow, by channel."""
        return {
            name: channel.common.slow_after
            for name, channel in self.configured.items()
            if channel.common.slow_after is not None
        }

    @property
    def cost_guards(self) -> Mapping[str, float]:
        """Return how many times as many parts are too many, by channel."""
        return {
            name: channel.common.cost_guard
            for name, channel in self.configured.items()
            if channel.common.cost_guard is not None
        }

    def has_later(self, channel: str) -> bool:
        """Whether another configured channel comes after this one in the order."""
        later = self.order[self.order.index(channel) + 1 :]
        return any(name in self.configured for name in later)

    @property
    def receipt_paths(self) -> Mapping[str, str]:
        """Return the providers that report by the paths that they report to; a channel's only one has two."""
        paths: dict[str, str] = {}
        for channel in self.configured.values():
            for provider in channel.providers.values():
                if provider.receipt is not None:
                    paths[f"/receipts/{channel.name}/{provider.name}"] = provider.identity
                    if len(channel.providers) == 1:
                        paths[f"/receipts/{channel.name}"] = provider.identity
        return paths


def read_channels(file: ConfigFile, tables: object) -> ChannelsOptions:
    """Read the tables; note their mistakes, and return the channels that have none."""
    if not isinstance(tables, dict):
        file.complain("channels", "expected tables, such as [channels.sms]")
        return ChannelsOptions()
    own = {key: tables[key] for key in ("order", "presets_dir") if key in tables}
    given = {name: table for name, table in tables.items() if name not in own}
    options = file.validate(ChannelsOptions, own, "channels")
    presets = PresetReader(file, options.presets_dir if options is not None else None, ProviderTable)
    configured = {
        name: channel
        for name, table in given.items()
        if (channel := _read_channel(file, presets, name, table))
    }
    for name in options.order if options is not None else ():
        if name not in given and name not in BLOCKS:
            text = f"there is no [channels.{name}]{suggestion(name, [*given, *BLOCKS])}"
            file.complain("channels.order", text)
    for name in given:
        if options is not None and name not in options.order:
            text = f"{name} is configured but missing from the order, so it would never be used"
            file.complain("channels.order", text)
    if not given:
        file.complain("channels", "no channel is configured; add a table such as [channels.sms]")
    named = [identity for name, table in given.items() for identity in _identities(name, table)]
    kept = options or ChannelsOptions()
    return kept.model_copy(update={"configured": configured, "named": tuple(named)})


def _identities(name: str, table: object) -> list[str]:
    below = table.get("providers") if isinstance(table, dict) else None
    return [provider_identity(name, each) for each in below] if isinstance(below, dict) and below else [name]


def _check_phones(file: ConfigFile, place: str, channel: ChannelTable, provider: ProviderConfig) -> None:
    """Complain of keys about phone numbers that can't be looked at."""
    if (problem := phones_problem(provider.common.adapter, provider.options)) is None:
        return
    own = [*provider.common.given, *(["weights"] if provider.common.weights else [])]
    for at, keys in ((place, channel.given), (provider.place, own)):
        for key in keys:
            file.complain(f"{at}.{key}", f"{problem} ({provider.identity})")


def _read_channel(file: ConfigFile, presets: PresetReader, name: str, table: object) -> ChannelConfig | None:
    place = f"channels.{name}"
    if not isinstance(table, dict):
        file.complain(place, "unknown key; a channel is a table, such as [channels.sms]")
        return None
    if not _NAME.fullmatch(name):
        file.complain(place, "a channel's name may hold letters, digits, _ and -")
    tables = _provider_tables(file, presets, name, table)
    own = {key: table[key] for key in ChannelTable.model_fields if key in table}
    common = file.validate(ChannelTable, own, place)
    if common is None or tables is None:
        return None
    block = common.block or name
    if block not in BLOCKS:
        text = f"{block!r} isn't a content block; use one of {', '.join(BLOCKS)}"
        file.complain(f"{place}.block", text)
        return None
    if block != "sms":
        for key in sorted(ONLY_FOR_SMS & own.keys()):
            file.complain(f"{place}.{key}", f"only for the block sms; this channel sends {block}")
    found = [_read_provider(file, presets, name, block, each) for each in tables]
    providers = {provider.name: provider for provider in found if provider is not None}
    for provider in providers.values():
        _check_phones(file, place, common, provider)
    return ChannelConfig(name=name, block=block, common=common, providers=providers) if providers else None


def _provider_tables(
    file: ConfigFile, presets: PresetReader, name: str, table: _Table
) -> list[_Given] | None:
    """The providers of a channel."""
    place = f"channels.{name}"
    if "providers" not in table:
        own = {key: value for key, value in table.items() if key not in ChannelTable.model_fields}
        for key, value in own.items():
            if isinstance(value, dict) and closest(key, ["providers"]):
                file.complain(f"{place}.{key}", "unknown key; did you mean providers?")
                return None
        return [_Given(name, name, place, own)]
    below = table["providers"]
    example = f"[{place}.providers.NAME]"
    if not isinstance(below, dict) or not below:
        file.complain(f"{place}.providers", f"expected tables, such as {example}")
        return None
    adapters = [str(each.get("adapter")) for each in below.values() if isinstance(each, dict)]
    _refuse_misplaced(file, place, table, {key for each in adapters for key in presets.keys(each)})
    found = []
    for provider, keys in below.items():
        at = f"{place}.providers.{provider}"
        if not isinstance(keys, dict):
            file.complain(at, "expected a table")
        elif not _NAME.fullmatch(provider):
            file.complain(at, "a provider's name may hold letters, digits, _ and -")
        else:
            found.append(_Given(provider_identity(name, provider), provider, at, keys))
    return found


def _refuse_misplaced(file: ConfigFile, place: str, table: _Table, adapters: Collection[str]) -> None:
    """Note the keys beside `providers` that aren't a channel's; `adapters` are those of its adapters."""
    known = {*ProviderTable.model_fields, *adapters} - _OF_BOTH
    for key in table:
        if key in known:
            text = f"belongs to a provider, as {place}.providers.NAME.{key}"
        elif key not in ChannelTable.model_fields and key != "providers":
            text = f"unknown key{suggestion(key, [*ChannelTable.model_fields, 'providers'])}"
        else:
            continue
        file.complain(f"{place}.{key}", text)


def _read_provider(
    file: ConfigFile, presets: PresetReader, channel: str, block: str, given: _Given
) -> ProviderConfig | None:
    identity, name, place, table = given
    misplaced = [key for key in ChannelTable.model_fields if key in table and key not in _OF_BOTH]
    for key in misplaced:
        file.complain(f"{place}.{key}", f"belongs to the channel, as channels.{channel}.{key}")
    table = {key: value for key, value in table.items() if key not in misplaced}
    if (expanded := presets.expanded(place, block, table)) is None:
        return None
    table = expanded
    common = file.validate(ProviderTable, table, place)
    kind = _kind_of(file, presets, place, table)
    if kind is None:
        return None
    keys = ProviderTable.model_fields
    known = [*keys, *ChannelTable.model_fields] if ".providers." not in place else keys
    own = {key: value for key, value in table.items() if key not in keys}
    options = file.validate(kind.options, own, place, known=known)
    if common is None or options is None:
        return None
    for problem in kind.check(options, block):
        key, _, text = problem.partition(": ")
        file.complain(f"{place}.{key}", text)
    if block != "sms" and common.rate is not None and common.rate.in_parts:
        text = f"only the block sms has parts; this channel sends {block}: name a rate such as 50/s"
        file.complain(f"{place}.rate", text)
    return ProviderConfig(
        identity=identity, name=name, channel=channel, block=block, place=place,
        common=common, options=options,
    )  # fmt: skip


def _kind_of(file: ConfigFile, presets: PresetReader, place: str, table: _Table) -> AdapterKind | None:
    """Return the provider's adapter, or note why there is none."""
    adapter = table.get("adapter")
    if not isinstance(adapter, str):  # reported with the common keys
        if adapter is None and (misspelled := closest("adapter", table)) is not None:
            file.complain(f"{place}.{misspelled}", "unknown key; did you mean adapter?")
        return None
    try:
        return find_adapter(adapter, presets.names_beside(adapter))
    except ValueError as error:
        file.complain(f"{place}.adapter", str(error))
        return None
