"""Blocking work: in a worker thread or, in virtual time, in the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import sniffio
from anyio.lowlevel import RunVar

from deliveryd.runtime.process import NoThread
from deliveryd.telemetry.log_events import Event, log

T = TypeVar("T")


LARGE = 4 << 10
"""Characters from which on work that grows with a text isn't done in the event loop: about a millisecond."""

_COMPUTING: RunVar[anyio.CapacityLimiter] = RunVar("the thread of `Aside`")


class Blocking(Protocol):
    """Runs a blocking function and returns its result."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run it to completion, even if the caller is cancelled meanwhile."""


_NEXT_TRY = 1.0
"""Seconds after which work looks for a thread again."""

_SAID_AGAIN = 60.0

_SAID_AT: RunVar[float] = RunVar("when it was logged that no thread can be begun")


async def in_thread(work: Callable[[], T], /, *, abandon_on_cancel: bool = False) -> T:
    """Run it in a worker thread of a pool; wait while this process can begin no thread."""
    while True:
        try:
            return await _pooled(work, abandon_on_cancel=abandon_on_cancel)
        except NoThread as error:
            now = anyio.current_time()
            if now >= _SAID_AT.get(float("-inf")) + _SAID_AGAIN:
                _SAID_AT.set(now)
                log(Event.FILES_EXHAUSTED, reason=str(error.strerror))
        await anyio.sleep(_NEXT_TRY)


async def _pooled(
    work: Callable[[], T], *, limiter: anyio.CapacityLimiter | None = None, abandon_on_cancel: bool = False
) -> T:
    """Run it in a thread of a pool. Raises NoThread if there is none, and none can be begun."""
    has_begun = False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        return work()

    try:
        return await anyio.to_thread.run_sync(begin, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
    except RuntimeError as error:
        if has_begun or "thread" not in str(error):  # "can't start new thread"
            raise
        raise NoThread from error


class Aside:
    """Runs what only computes in a worker thread, one such work at a time, for one of several owners.

    A thread that computes shares the interpreter with the event loop, turn by turn; of several, each would
    have its turn before the loop has the next one. Only one work of each owner queues for the thread, so that
    no owner waits for more than one work of each other owner. A call into C that takes long holds up the
    loop all the same: what works on large texts does it in slices. The work is done in the loop if no thread
    can be begun.
    """

    def __init__(self) -> None:
        self._turn = anyio.Lock(fast_acquire=True)

    async def sized(self, size: int, work: Callable[[], T], /) -> T:
        """Run what grows with this many characters: beside the event loop only if they are many."""
        return await self(work) if size > LARGE else work()

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run it; to completion once it has begun, even if the caller is cancelled meanwhile.

        On trio it runs in the event loop, as with `inline`.
        """
        if sniffio.current_async_library() != "asyncio":
            return await inline(work)
        try:
            limiter = _COMPUTING.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(1)
            _COMPUTING.set(limiter)
        async with self._turn:
            try:
                return await _pooled(work, limiter=limiter)
            except NoThread:
                return work()


async def inline(work: Callable[[], T], /) -> T:
    """Run it in the event loop: a clock that jumps over idle time would jump over a thread's work."""
    await anyio.lowlevel.checkpoint()
    return work()


@asynccontextmanager
async def own_thread(name: str) -> AsyncIterator[Blocking]:
    """Provide one thread that runs work in order; on asyncio at less than half the cost of a pool."""
    if sniffio.current_async_library() != "asyncio":
        yield in_thread
        return
    worker = _Worker(name)
    try:
        yield worker
    finally:
        worker.end()


class _Worker:
    """A thread and its queue of work."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._work = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def __call__(self, work: Callable[[], T], /) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        self._work.put((work, future))
        with anyio.CancelScope(shield=True):
            await future
        return future.result()

    def end(self) -> None:
        """Finish the queue, and end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            work, future = task
            try:
                result = work()
            except BaseException as error:  # raised in the caller
                self._loop.call_soon_threadsafe(_fail, future, error)
            else:
                self._loop.call_soon_threadsafe(_settle, future, result)


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if isinstance(error, StopIteration):  # a future rejects it, and the caller would wait forever
        ended = RuntimeError("the work raised StopIteration")
        ended.__cause__ = error
        error = ended
    if not future.done():
        future.set_exception(error)
