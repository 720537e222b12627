"""Where work that blocks is done: in a worker thread, or, in virtual time, right here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import anyio.lowlevel
import anyio.to_thread

T = TypeVar("T")


class Blocking(Protocol):
    """Runs a function that blocks, and returns what it returned."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run it to its end, even if the caller is cancelled meanwhile."""


async def in_thread(work: Callable[[], T], /) -> T:
    """Run it in a worker thread, while the event loop goes on."""
    return await anyio.to_thread.run_sync(work)


async def inline(work: Callable[[], T], /) -> T:
    """Run it in the event loop: a clock that jumps over idle time must not jump over a thread's work."""
    await anyio.lowlevel.checkpoint()
    return work()
