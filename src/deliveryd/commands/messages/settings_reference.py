"""What the service calls the settings of a message, as far as a worker on this machine has them on disk.

Only `explain` of a message whose settings may be there loads this module: a cache needs an event loop.
"""

from __future__ import annotations

import anyio

from deliveryd.config import Config
from deliveryd.errors import ServiceUnreadable
from deliveryd.service.wire import read_settings
from deliveryd.worker.caches import open_cache


def read_reference(config: Config, settings_id: int) -> str | None:
    """Return the reference of settings in the disk cache; None: they aren't there, or have none."""
    kept = anyio.run(_kept, config, f"settings/{settings_id}")
    try:
        return None if kept is None else read_settings(settings_id, kept).reference
    except ServiceUnreadable:
        return None


async def _kept(config: Config, key: str) -> bytes | None:
    cache = open_cache(config, on_problem=lambda _problem: None)
    try:
        found = await cache.get(key)
    finally:
        await cache.aclose()
    return None if found is None else found.value
