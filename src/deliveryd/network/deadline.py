"""Deadlines that first read what has already arrived."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint

LAST_TURNS = 4
"""Turns of the event loop after a deadline, in which what lies in the sockets is read."""

HELD_UP = 0.01
"""Seconds by which a deadline is late where the process was suspended or its event loop held up."""

LATE_TURNS = 256
"""Turns after a deadline that was late.

A process that was suspended (SIGSTOP, a suspended machine) resumes after its deadlines, with answers in
its sockets. A socket holds some MB, and each turn reads 64 KiB. With nothing to read, turns take little time.
"""

T = TypeVar("T")


async def within(seconds: float, work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work` if it ends within `seconds`, or with what had arrived by then.

    Otherwise cancels `work` and raises TimeoutError.
    """
    result: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as watch:
        with anyio.CancelScope() as scope:
            watch.start_soon(_end_late, anyio.current_time() + seconds, scope)
            try:
                result.append(await work())
            except Exception as error:  # it would be wrapped in an exception group
                failure = error
        watch.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not result:
        raise TimeoutError
    return result[0]


async def _end_late(deadline: float, scope: anyio.CancelScope) -> None:
    await anyio.sleep_until(deadline)
    late = anyio.current_time() - deadline >= HELD_UP
    for _ in range(LATE_TURNS if late else LAST_TURNS):
        await checkpoint()
    scope.cancel()
