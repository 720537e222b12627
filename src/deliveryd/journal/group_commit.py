"""Commits that many operations share: what waits while one is under way goes into the next one together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import anyio

from deliveryd.errors import JournalError, JournalFull, JournalUnreachable
from deliveryd.runtime.threads import Blocking
from deliveryd.telemetry.log_events import Event, log

FULL_PAUSE = 1.0
"""Seconds after which it is tried again whether a full disk has room."""

COMMIT_LINGER = 0.002
"""Seconds that a commit waits for more operations: the fewer commits, the less each message costs."""

T = TypeVar("T")
_Db = TypeVar("_Db")


class PendingOperation(Generic[_Db, T]):
    """An operation that waits for its commit; `then` is called after that, before anything else begins."""

    __slots__ = ("done", "error", "operation", "result", "then")

    def __init__(self, operation: Callable[[_Db], T], then: Callable[[], None] | None = None) -> None:
        self.operation = operation
        self.then = then
        self.done = anyio.Event()
        self.result: T
        self.error: Exception | None = None


class GroupCommit(ABC, Generic[_Db]):
    """Operations of one journal, and the loop that commits them."""

    def __init__(self, write: Blocking) -> None:
        self._write_in = write
        self._waiting: list[PendingOperation[_Db, Any]] = []
        self._wake = anyio.Event()
        self._closing = False
        self._short_of_room = 0
        self._unreachable = False
        self._logged: str | None = None  # what is lacking, as last logged
        self._broken: JournalError | None = None

    @abstractmethod
    async def _settle(self, batch: Sequence[PendingOperation[_Db, Any]]) -> None:
        """Run operations in one transaction; where one of them fails, each in a transaction of its own.

        Thus a failing operation takes back all that it did itself, and nothing of the others.
        """

    def _seek_room(self) -> None:
        """Called before each attempt to repeat what there was no room for."""

    async def _roused(self) -> None:
        """Wait for something to do."""
        await self._wake.wait()

    async def _keep_up(self) -> None:
        """Called each time before what waits is committed."""

    @property
    def is_broken(self) -> bool:
        """Whether nothing more can be recorded until the journal is opened again."""
        return self._broken is not None

    @property
    def full(self) -> bool:
        """Whether something waits for room on the disk."""
        return self._short_of_room > 0

    @property
    def is_unreachable(self) -> bool:
        """Whether what waits does so for a database that can't be reached."""
        return self._unreachable and self._short_of_room > 0

    async def _commit(self, operation: Callable[[_Db], T], then: Callable[[], None] | None = None) -> T:
        """Commit an operation, however long it takes until the disk has room for it."""
        try:
            return await self._try(operation, then)
        except JournalFull as error:
            return await self._again(partial(self._try, operation, then), error)

    async def _again(self, attempt: Callable[[], Awaitable[T]], error: JournalFull) -> T:
        """Repeat what there was no room for, or no database, until there is."""
        self._short_of_room += 1
        if self._short_of_room == 1:
            self._logged = None
        self._note_lack(error)
        try:
            while True:
                self._seek_room()
                await anyio.sleep(FULL_PAUSE)
                try:
                    return await attempt()
                except JournalFull as next_error:
                    self._note_lack(next_error)
        finally:
            self._short_of_room -= 1
            if not self._short_of_room:
                log(Event.JOURNAL_REACHED if self._unreachable else Event.JOURNAL_ROOM)

    def _note_lack(self, error: JournalFull) -> None:
        """Log what is lacking, unless it was logged last: it may change while it lasts."""
        self._unreachable = isinstance(error, JournalUnreachable)
        lack = str(error) if self._unreachable else ""
        if lack != self._logged:
            self._logged = lack
            if self._unreachable:
                log(Event.JOURNAL_UNREACHABLE, reason=lack)
            else:
                log(Event.JOURNAL_FULL)

    async def _try(self, operation: Callable[[_Db], T], then: Callable[[], None] | None = None) -> T:
        """Commit an operation; raises JournalFull when there is no room for it."""
        if self._broken is not None:
            raise self._broken
        if self._closing:
            raise JournalError("the journal is closed")
        request = PendingOperation(operation, then)
        self._waiting.append(request)
        self._wake.set()
        await request.done.wait()
        if request.error is not None:
            raise request.error
        return request.result

    async def _commit_what_waits(self) -> None:
        batch: list[PendingOperation[_Db, Any]] = []
        try:
            while self._waiting or not self._closing:
                await self._roused()
                self._wake = anyio.Event()
                await self._keep_up()
                if self._waiting and not self._closing:
                    await anyio.sleep(COMMIT_LINGER)
                while self._waiting:
                    batch, self._waiting = _next_batch(self._waiting)
                    await self._settle(batch)
                    for request in batch:
                        if request.then is not None and request.error is None:
                            request.then()
                        request.done.set()
                    batch = []
        finally:  # cancelled: nothing is committed any more
            self._closing = True
            for request in (*batch, *self._waiting):
                request.error = JournalError("the journal was closed before this was recorded")
                request.done.set()

    def stop(self) -> None:
        """Let the loop end after what waits now."""
        self._closing = True
        self._wake.set()


def _next_batch(
    waiting: list[PendingOperation[_Db, Any]],
) -> tuple[list[PendingOperation[_Db, Any]], list[PendingOperation[_Db, Any]]]:
    """The operations of the next commit, and the rest. One with a `then` is the last of its commit."""
    for number, request in enumerate(waiting, 1):
        if request.then is not None:
            return waiting[:number], waiting[number:]
    return waiting, []
