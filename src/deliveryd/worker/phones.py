"""The providers whose addresses are phone numbers, and which numbers each is sent."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from deliveryd.channels.base import Channel
from deliveryd.channels.destination_options import WITHOUT_PHONES
from deliveryd.channels.destination_rules import rules_of
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.options import ChannelConfig, ProviderConfig
from deliveryd.config import Config

if TYPE_CHECKING:
    from deliveryd.delivery.destinations import Destinations


def phone_providers(config: Config) -> Collection[str]:
    """The providers whose addresses are phone numbers, read with the filter e164; none without [safety]."""
    if not config.safety.limits:
        return ()
    return [name for name, provider in config.channels.providers.items() if reads_phones(provider)]


def reads_phones(provider: ProviderConfig) -> bool:
    """Whether a provider's addresses are phone numbers, read with the filter e164."""
    options = provider.options
    return isinstance(options, HttpChannelOptions) and "|e164" in (options.address() or "")


def destinations_of(
    channel: ChannelConfig, provider: ProviderConfig, adapter: Channel
) -> Destinations | None:
    """Which numbers a provider is sent, and its weights; None: it has no phone numbers, or no such keys."""
    rules, reads = rules_of(channel, provider), reads_phones(provider)
    has_phones = reads or (channel.block == "sms" and provider.common.adapter not in WITHOUT_PHONES)
    allow = f"channels.{channel.name}.allow_premium"
    refuses_premium = has_phones and not channel.common.allow_premium
    weights = provider.common.weights
    if not rules and not refuses_premium and not weights:
        return None
    from deliveryd.delivery.destinations import Destinations  # noqa: PLC0415  # loads phonenumbers

    return Destinations(
        adapter, rules, allow if refuses_premium else None, reads_phones=reads, weights=weights
    )
