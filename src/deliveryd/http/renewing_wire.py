"""A wire whose certificates are replaced while it carries requests."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from deliveryd.http.wire import Answer, Check, Headers, Target, Wire
from deliveryd.renewing import FromFiles


@dataclass(slots=True, eq=False)
class _Opened:
    """A wire with what it was opened with, and how many requests are under way on it."""

    context: ssl.SSLContext
    wire: Wire
    under_way: int = 0


class RenewingWire:
    """Carries requests over a wire that `open_wire` opens with the certificates that are in the files now.

    When they are replaced, the next requests take a new wire. The one before is closed as soon as the last
    request on it has its answer.
    """

    def __init__(
        self, contexts: FromFiles[ssl.SSLContext], open_wire: Callable[[ssl.SSLContext], Wire]
    ) -> None:
        self._contexts = contexts
        self._open_wire = open_wire
        self._newest = self._open()
        self._older: set[_Opened] = set()

    async def exchange(
        self,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        max_body: int,
        check: Check | None = None,
    ) -> Answer:
        """Send a request and return the whole answer. Raises NotSent or OutcomeUnknown."""
        if self._contexts.current() is not self._newest.context:
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

    def _open(self) -> _Opened:
        context = self._contexts.current()
        return _Opened(context, self._open_wire(context))

    async def _replace(self) -> None:
        before, self._newest = self._newest, self._open()
        self._older.add(before)
        await self._close_unless_used(before)

    async def _close_unless_used(self, opened: _Opened) -> None:
        if opened.under_way == 0:
            self._older.discard(opened)
            with anyio.CancelScope(shield=True):
                await opened.wire.aclose()
