"""A wire whose certificates, or login at a proxy, can be replaced while in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

from deliveryd.http.wire import BeforeSend, Headers, Target, Wire, WireResponse
from deliveryd.runtime.secret_file import RenewedValue

Read = TypeVar("Read")


@dataclass(slots=True, eq=False)
class _Opened(Generic[Read]):
    """A wire, the values that it was opened with, and its number of requests in progress."""

    read: Read
    wire: Wire
    under_way: int = 0


class RenewingWire(Generic[Read]):
    """Sends requests over a wire that `open_wire` opens with the current content of the files.

    When a file is replaced, new requests use a new wire. The previous one is closed after its last request.
    """

    def __init__(self, files: RenewedValue[Read], open_wire: Callable[[Read], Wire]) -> None:
        self._files = files
        self._open_wire = open_wire
        self._newest = self._open()
        self._older: set[_Opened[Read]] = set()

    async def exchange(
        self,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        max_body: int,
        check: BeforeSend | None = None,
    ) -> WireResponse:
        """Send a request and return the whole answer. Raises NotSent or OutcomeUnknown."""
        if self._files.current() is not self._newest.read:
            await self._replace()
        opened = self._newest
        opened.under_way += 1
        try:
            return await opened.wire.exchange(
                method, target, headers, body, deadline=deadline, max_body=max_body, check=check
            )
        finally:
            opened.under_way -= 1
            if opened in self._older:
                await self._close_unless_used(opened)

    async def aclose(self) -> None:
        """Close all connections."""
        for opened in (self._newest, *self._older):
            await opened.wire.aclose()

    def _open(self) -> _Opened[Read]:
        read = self._files.current()
        return _Opened(read, self._open_wire(read))

    async def _replace(self) -> None:
        before, self._newest = self._newest, self._open()
        self._older.add(before)
        await self._close_unless_used(before)

    async def _close_unless_used(self, opened: _Opened[Read]) -> None:
        if opened.under_way == 0:
            self._older.discard(opened)
            with anyio.CancelScope(shield=True):
                await opened.wire.aclose()
