"""Servers that are loaded when somebody first connects, since loading them is a tenth of a start.

Until then the system keeps those who connect waiting, on an address that is bound from the beginning.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    Serve = Callable[[ASGIApp, socket.socket, anyio.Event], Awaitable[None]]


async def serve_when_asked(
    build: Callable[[], ASGIApp],
    bound: socket.socket,
    stop: anyio.Event,
    trusted_proxies: Sequence[str] = (),
) -> None:
    """Answer requests on `bound` with the application that `build` makes, from the first one until `stop`.

    `build` is called in a thread, so that what it loads doesn't hold up the loop. Networks of
    `trusted_proxies` are believed when they say whom a request comes from. The socket and all connections are
    closed in the end, also when this call is cancelled.
    """
    with bound:
        await _first(lambda: anyio.wait_readable(bound), stop.wait)
        if not stop.is_set():
            serve, app = await anyio.to_thread.run_sync(_load, build, trusted_proxies)
            await serve(app, bound, stop)


async def _first(*events: Callable[[], Awaitable[None]]) -> None:
    """Wait for the first of several events."""
    async with anyio.create_task_group() as waiting:

        async def wait(event: Callable[[], Awaitable[None]]) -> None:
            await event()
            waiting.cancel_scope.cancel()

        for event in events:
            waiting.start_soon(wait, event)


def _load(build: Callable[[], ASGIApp], trusted_proxies: Sequence[str]) -> tuple[Serve, ASGIApp]:
    from deliveryd.http.peers import Peers  # noqa: PLC0415  # needed no sooner
    from deliveryd.http.server import serve  # noqa: PLC0415  # loads the server, see above

    return partial(serve, peers=Peers(trusted_proxies)), build()
