"""What the conformance tables send: one customer, one message, and a content for each block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from deliveryd.channels.base import Channel, Dispatch
from deliveryd.channels.registry import find_adapter, open_adapter
from deliveryd.model import Clock, Customer, Entry, Rendered, WallClock, size_of

BEGUN_AT = 1_700_000_000_000_000
ADA = Customer(7, {"name": "Ada", "phone": "+15550111", "email": "ada@example.com"})

CONTENT: Mapping[str, Mapping[str, str]] = {
    "sms": {"text": "Bonjour"},
    "messenger": {"text": "Bonjour"},
    "inApp": {"name": "Hi", "description": "Bonjour"},
    "email": {"subject": "Hi", "body": "Bonjour"},
}
"""Rendered fields for each block of the settings."""


def dispatch(
    block: str,
    fields: Mapping[str, str],
    *,
    customer: Customer | None = ADA,
    key: str = "a-1",
    expires_at: int | None = None,
    clock: Clock | None = None,
) -> Dispatch:
    """One attempt to send message 42."""
    entry = Entry(id=42, settings_id=5, customer_id=7, variables={}, stay_tries=1, begun_at=BEGUN_AT)
    rendered = Rendered(block, "en", fields)
    return Dispatch(
        key, entry, customer, rendered, expires_at, clock or WallClock(),
        size=size_of(entry, rendered, customer),
    )  # fmt: skip


@asynccontextmanager
async def opened(
    adapter: str, options: Mapping[str, Any], *, block: str, timeout: float = 5.0
) -> AsyncIterator[Channel]:
    """Open the channel `test` with the keys that `[channels.test]` would hold, and close it afterwards."""
    model = find_adapter(adapter).options.model_validate(dict(options))
    channel = open_adapter("channels.test", block, adapter, model, timeout=timeout)
    try:
        yield channel
    finally:
        await channel.aclose()
