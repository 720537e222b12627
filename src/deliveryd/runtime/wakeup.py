"""Waking idle loops and tasks: an auto-reset event, a parking lot, uses that end, and heartbeats of loops.

Also a wait that a suspended process doesn't miss.
"""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import sniffio

HEARTBEAT_INTERVAL = 5.0
"""Most seconds between two turns of a loop, even without work, so that a stuck loop is noticed."""


RUNNING_STEP = 0.5
"""Most seconds of a suspension that count as ones in which the process ran."""


async def wait_while_running(event: anyio.Event, seconds: float) -> None:
    """Wait for an event, up to so many seconds in which this process runs.

    A process that was suspended (SIGSTOP, a frozen machine) resumes after its deadlines; what it was about
    then needs as much time as before.
    """
    while seconds > 0 and not event.is_set():
        with anyio.move_on_after(min(seconds, RUNNING_STEP)):
            await event.wait()
        seconds -= RUNNING_STEP


class AutoResetEvent:
    """An event that a wait resets. It stays set until the next wait."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._is_set = False

    def set(self) -> None:
        """Wake the waiter, or let the next wait return at once."""
        if not self._is_set:
            self._is_set = True
            self._event.set()

    async def wait(self, longest: float = HEARTBEAT_INTERVAL) -> bool:
        """Wait up to `longest` seconds; return whether the event was set, and reset it."""
        if self._is_set:
            await anyio.lowlevel.checkpoint()
        else:
            with anyio.move_on_after(longest):
                await self._event.wait()
        was_set = self._is_set
        if was_set:
            self._is_set = False
            self._event = anyio.Event()
        return was_set


class ParkingLot:
    """Idle tasks that wait to be woken, the latest first.

    Every message wakes a task of its dispatcher. On asyncio the task awaits a bare future, which costs a
    fifth of an event.
    """

    def __init__(self) -> None:
        self._on_asyncio = sniffio.current_async_library() == "asyncio"
        self._parked: list[asyncio.Future[None] | anyio.Event] = []

    def unpark(self, most: int) -> int:
        """Wake up to `most` waiters; return the number woken.

        A cancelled waiter counts too: those of a dispatcher are cancelled together.
        """
        count = min(most, len(self._parked))
        for _ in range(count):
            waiter = self._parked.pop()
            if not isinstance(waiter, asyncio.Future):
                waiter.set()
            elif not waiter.done():  # else its task was cancelled
                waiter.set_result(None)
        return count

    async def park(self) -> None:
        """Wait to be woken."""
        if self._on_asyncio:
            future = asyncio.get_running_loop().create_future()
            self._parked.append(future)
            await future
        else:
            event = anyio.Event()
            self._parked.append(event)
            await event.wait()


class Uses:
    """How many uses of something are in progress, so that it can be closed after the last one."""

    def __init__(self) -> None:
        self._count = 0
        self._unused: anyio.Event | None = None

    def begin(self, count: int) -> None:
        """Count uses that begin."""
        self._count += count

    def end(self, count: int) -> None:
        """Count uses that ended."""
        self._count -= count
        if self._unused is not None and not self._count:
            self._unused.set()

    def retire(self) -> anyio.Event:
        """No more uses begin; the event is set when the last one has ended."""
        self._unused = anyio.Event()
        self.end(0)
        return self._unused


class Heartbeats:
    """When each loop last turned, by the event loop's clock in seconds."""

    def __init__(self) -> None:
        self._turned: dict[str, float] = {}

    def beat(self, loop: str) -> float:
        """Record a turn of this loop; return the event loop's time."""
        now = self._turned[loop] = anyio.current_time()
        return now

    def forget(self, loop: str) -> None:
        """Remove a loop that ended normally."""
        self._turned.pop(loop, None)

    def ages(self) -> list[tuple[str, float]]:
        """Seconds since each loop last turned."""
        now = anyio.current_time()
        return [(loop, now - turned) for loop, turned in self._turned.items()]
