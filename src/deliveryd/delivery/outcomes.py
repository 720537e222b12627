"""Outcomes of attempts: recorded together, as many at a time as there are."""

from __future__ import annotations

import anyio

from deliveryd.delivery.recorder import Recorder
from deliveryd.model import Transition
from deliveryd.runtime.wakeup import AutoResetEvent, Heartbeats


class Outcomes:
    """Steps that follow from attempts, until they are recorded."""

    def __init__(self, recorder: Recorder, heartbeats: Heartbeats) -> None:
        self._recorder = recorder
        self._heartbeats = heartbeats
        self._pending: list[Transition] = []
        self._added = AutoResetEvent()
        self._recording = anyio.Lock(fast_acquire=True)

    @property
    def pending(self) -> int:
        """How many aren't recorded yet."""
        return len(self._pending)

    def add(self, transition: Transition) -> None:
        """Have a step recorded together with all that come in meanwhile."""
        if not self._pending:
            self._added.set()
        self._pending.append(transition)

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            self._heartbeats.beat("settling")
            await self._added.wait()
            await self.flush()

    async def flush(self) -> None:
        """Record what was added so far, after what is being recorded: a full disk may hold that up."""
        async with self._recording:
            pending, self._pending = self._pending, []
            await self._recorder.record(pending)
