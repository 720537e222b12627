"""The dispatchers that run: they come and go with the configuration."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import anyio
from anyio.abc import TaskGroup

from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.runtime.wakeup import Heartbeats


class Dispatchers:
    """Runs a dispatcher for each provider. `current` has them by their providers, and is kept up to date."""

    def __init__(self, dispatchers: Mapping[str, Dispatcher], heartbeats: Heartbeats) -> None:
        self.current = dict(dispatchers)
        self._heartbeats = heartbeats
        self._scopes: dict[Dispatcher, anyio.CancelScope] = {}
        self._leaving: list[Dispatcher] = []
        self._tasks: TaskGroup | None = None

    @property
    def all(self) -> Sequence[Dispatcher]:
        """Those of removed providers too, whose last attempts are under way."""
        return (*self.current.values(), *self._leaving)

    async def run(self) -> None:
        """Run them until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            for dispatcher in self.current.values():
                self._start(dispatcher)
            await anyio.sleep_forever()

    def begin(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run another loop beside them."""
        if self._tasks is not None:
            self._tasks.start_soon(loop)

    def add(self, dispatcher: Dispatcher) -> None:
        """Run a dispatcher for a provider that was added."""
        self.current[dispatcher.name] = dispatcher
        self._start(dispatcher)

    def remove(self, provider: str) -> Dispatcher:
        """Begin no more attempts at a provider; return its dispatcher, to be ended by `end`."""
        dispatcher = self.current.pop(provider)
        self._leaving.append(dispatcher)
        return dispatcher

    async def end(self, dispatcher: Dispatcher) -> None:
        """Wait until a removed provider's last attempt has ended."""
        await dispatcher.finish()
        self._leaving.remove(dispatcher)
        if (scope := self._scopes.pop(dispatcher, None)) is not None:
            scope.cancel()
        if dispatcher.name not in self.current:
            self._heartbeats.forget(dispatcher.loop)

    def _start(self, dispatcher: Dispatcher) -> None:
        if self._tasks is not None:
            scope = self._scopes[dispatcher] = anyio.CancelScope()
            self._tasks.start_soon(_run_within, scope, dispatcher)


async def _run_within(scope: anyio.CancelScope, dispatcher: Dispatcher) -> None:
    with scope:
        await dispatcher.run()
