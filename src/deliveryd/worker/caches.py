"""The disk caches of the service's answers, where the configuration has them."""

from __future__ import annotations

from collections.abc import Callable

from deliveryd.config import Config
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.runtime.threads import Blocking, in_thread
from deliveryd.telemetry.log_events import Event, log


def log_cache_problem(problem: str) -> None:
    """Log that a disk cache fails."""
    log(Event.CACHE_BROKEN, reason=problem)


def open_cache(
    config: Config,
    blocking: Blocking = in_thread,
    on_problem: Callable[[str], None] = log_cache_problem,
) -> DiskCache:
    """The disk cache of the service's settings; it opens its files when it is first used."""
    return DiskCache(
        config.settings.cache_dir,
        config.settings.size_limit,
        on_problem,
        blocking,
        below=config.service.address,
    )


def open_entities_cache(config: Config, on_problem: Callable[[str], None] = log_cache_problem) -> DiskCache:
    """The disk cache of entity configurations; it opens its files when it is first used."""
    return DiskCache(
        config.entities.cache_dir or config.settings.cache_dir / "entities",
        config.entities.size_limit,
        on_problem,
    )
