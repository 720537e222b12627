"""What the service calls the settings of a message, as far as a worker on this machine has them on disk."""

from __future__ import annotations

import os

from deliveryd.config import Config
from deliveryd.errors import ServiceUnreadable
from deliveryd.service.wire import read_settings
from deliveryd.worker.caches import open_cache


async def cached_reference(config: Config, settings_id: int) -> str | None:
    """Return the reference of settings in the disk cache; None: they aren't there, or have none."""
    # A cache opened without write permission would count as broken and be discarded.
    if not os.access(config.settings.cache_dir / "cache.db", os.R_OK | os.W_OK, effective_ids=True):
        return None
    cache = open_cache(config, on_problem=lambda _problem: None)
    try:
        kept = await cache.get(f"settings/{settings_id}")
    finally:
        await cache.aclose()
    try:
        return None if kept is None else read_settings(settings_id, kept.value).reference
    except ServiceUnreadable:
        return None
