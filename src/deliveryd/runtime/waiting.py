"""Waiting for work: a bell that can be rung before anybody listens, and a pulse that shows a loop turning."""

from __future__ import annotations

import asyncio

import anyio
import sniffio

LONGEST_WAIT = 5.0
"""Seconds after which every loop turns at the latest, work or not, so that a stuck one is seen."""


class Bell:
    """Rings once for however many reasons there were since it was last heard."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._rung = False

    def ring(self) -> None:
        """Wake who waits, or who will wait next."""
        if not self._rung:
            self._rung = True
            self._event.set()

    async def wait(self, longest: float = LONGEST_WAIT) -> bool:
        """Wait for the bell, `longest` seconds at most; tell whether it rang."""
        with anyio.move_on_after(longest):
            await self._event.wait()
        rang = self._rung
        if rang:
            self._rung = False
            self._event = anyio.Event()
        return rang


class Rest:
    """Where tasks stay that have nothing to do; who came last is woken first.

    Every message wakes a task of its lane. On asyncio it waits for a bare future, which costs a fifth of an
    event.
    """

    def __init__(self) -> None:
        self._on_asyncio = sniffio.current_async_library() == "asyncio"
        self._staying: list[asyncio.Future[None] | anyio.Event] = []

    def wake(self, most: int) -> int:
        """Wake so many at most; return how many it were.

        One that was cancelled at rest counts as well: those of a lane are cancelled together, with the lane.
        """
        count = min(most, len(self._staying))
        for _ in range(count):
            one = self._staying.pop()
            if isinstance(one, anyio.Event):
                one.set()
            elif not one.done():  # else its task was cancelled
                one.set_result(None)
        return count

    async def stay(self) -> None:
        """Wait to be woken."""
        if self._on_asyncio:
            future = asyncio.get_running_loop().create_future()
            self._staying.append(future)
            await future
        else:
            event = anyio.Event()
            self._staying.append(event)
            await event.wait()


class Pulse:
    """When each loop last turned, in seconds of the event loop's clock."""

    def __init__(self) -> None:
        self._turned: dict[str, float] = {}

    def beat(self, loop: str) -> float:
        """This loop turns; return the instant of the event loop's clock."""
        now = self._turned[loop] = anyio.current_time()
        return now

    def forget(self, loop: str) -> None:
        """This loop ended, as it should."""
        self._turned.pop(loop, None)

    def ages(self) -> list[tuple[str, float]]:
        """Per loop the seconds since it last turned."""
        now = anyio.current_time()
        return [(loop, now - turned) for loop, turned in self._turned.items()]
