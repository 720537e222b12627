"""Samples that the tests of the channel adapters share: a customer, a dispatch, channels by options."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from deliveryd.channels.base import Channel, Dispatch, Misconfigured, Refused, Verdict
from deliveryd.channels.registry import find_adapter, open_adapter
from deliveryd.model import Clock, Customer, Entry, Rendered, WallClock

BEGUN_AT = 1_700_000_000_000_000
ADA = Customer(7, {"name": "Ada", "phone": "+15550111", "email": "ada@example.com"})


def dispatch(
    block: str,
    fields: Mapping[str, str],
    *,
    customer: Customer | None = ADA,
    key: str = "a-1",
    expires_at: int | None = None,
    clock: Clock | None = None,
) -> Dispatch:
    """One attempt for message 42."""
    entry = Entry(id=42, settings_id=5, customer_id=7, variables={}, number=1, begun_at=BEGUN_AT)
    return Dispatch(key, entry, customer, Rendered(block, "en", fields), expires_at, clock or WallClock())


def nameless(verdict: Verdict) -> Verdict:
    """The verdict without the name of the host, which is another one in each test."""
    return verdict._replace(by=None) if isinstance(verdict, Refused | Misconfigured) else verdict


@asynccontextmanager
async def opened(
    adapter: str, options: Mapping[str, Any], *, block: str, timeout: float = 5.0
) -> AsyncIterator[Channel]:
    """The channel `test`, made from options as the configuration file would hold them."""
    model = find_adapter(adapter).options.model_validate(dict(options))
    channel = open_adapter("test", block, adapter, model, timeout=timeout)
    try:
        yield channel
    finally:
        await channel.aclose()
