"""The sandbox in a thread with an event loop of its own, for what has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anyio.from_thread import start_blocking_portal

from deliveryd.sandbox.server import Sandbox


@contextmanager
def open_sandbox(sandbox: Sandbox | None = None) -> Iterator[Sandbox]:
    """A sandbox that is open; its `state` may be used from any thread."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(sandbox or Sandbox()) as opened,
    ):
        yield opened
