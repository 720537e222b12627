"""Deadlines that read what has arrived before they believe that it didn't."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint

LAST_TURNS = 256
"""Turns of the event loop after a deadline, in which what lies in the sockets is read.

A process that stood still (SIGSTOP, a suspended machine) wakes after its deadlines, with answers in its
sockets. A socket holds some MB, and each turn reads 64 KiB of it. Without anything to read they take
milliseconds.
"""

T = TypeVar("T")


async def within(seconds: float, work: Callable[[], Awaitable[T]]) -> T:
    """What `work` returns, if it ends within so many seconds, or of what had arrived by then.

    Raises TimeoutError else, once `work` has been cancelled.
    """
    result: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as watch:
        with anyio.CancelScope() as scope:
            watch.start_soon(_end_late, anyio.current_time() + seconds, scope)
            try:
                result.append(await work())
            except Exception as error:  # it would leave the group in a group of errors
                failure = error
        watch.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not result:
        raise TimeoutError
    return result[0]


async def _end_late(deadline: float, scope: anyio.CancelScope) -> None:
    await anyio.sleep_until(deadline)
    for _ in range(LAST_TURNS):
        await checkpoint()
    scope.cancel()
