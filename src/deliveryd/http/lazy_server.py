"""Servers that are loaded on the first connection, since loading takes a tenth of the start-up time.

The address is bound from the start; until the server is loaded, the system queues connections.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from deliveryd.http.addresses import url_of
from deliveryd.runtime.process import is_out_of_files
from deliveryd.runtime.threads import in_thread
from deliveryd.telemetry.log_events import Event, log

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    Serve = Callable[[ASGIApp, socket.socket, anyio.Event], Awaitable[None]]


LOADED_AGAIN = 1.0
"""Seconds until a server is loaded again if no file could be opened."""


async def serve_when_asked(
    build: Callable[[], ASGIApp],
    bound: socket.socket,
    stop: anyio.Event,
    trusted_proxies: Sequence[str] = (),
) -> None:
    """Serve the application that `build` returns on `bound`, from the first connection until `stop`.

    `build` runs in a thread, so that its imports don't block the loop. Networks of `trusted_proxies` are
    trusted to name the peer of a request. The socket and all connections are closed at the end, also on
    cancellation.
    """
    with bound:
        await _first(lambda: anyio.wait_readable(bound), stop.wait)
        while not stop.is_set():
            try:
                serve, app = await in_thread(partial(_load, build, trusted_proxies))
            except OSError as error:
                if not is_out_of_files(error):
                    raise
                log(Event.FILES_EXHAUSTED, listen=url_of(bound), error=error)
                with anyio.move_on_after(LOADED_AGAIN):
                    await stop.wait()
            else:
                await serve(app, bound, stop)
                return


async def _first(*events: Callable[[], Awaitable[None]]) -> None:
    """Wait for the first of several events."""
    async with anyio.create_task_group() as waiting:

        async def wait(event: Callable[[], Awaitable[None]]) -> None:
            await event()
            waiting.cancel_scope.cancel()

        for event in events:
            waiting.start_soon(wait, event)


def _load(build: Callable[[], ASGIApp], trusted_proxies: Sequence[str]) -> tuple[Serve, ASGIApp]:
    from deliveryd.http.peers import Peers  # noqa: PLC0415  # only needed here
    from deliveryd.http.server import serve  # noqa: PLC0415  # loads the server

    return partial(serve, peers=Peers(trusted_proxies)), build()
