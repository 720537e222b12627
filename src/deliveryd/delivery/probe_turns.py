"""The turns in which the workers of a shared journal probe a provider that is down.

Breakers stay each worker's own: one whose network is broken must not stop the others. But only one worker at
a time probes, for the length of its breaker's pause; then it is anybody's turn. So all together send as many
probes as one would. When the provider answers one of them, the turn is free at once.
"""

from __future__ import annotations

import random
from contextlib import suppress

from anyio.abc import TaskGroup

from deliveryd.delivery.pace import SPREAD, UNREACHABLE_PAUSE
from deliveryd.errors import JournalUnreachable
from deliveryd.journal.base import SharedLimits
from deliveryd.runtime.breaker import Breaker, BreakerPolicy

LONGEST_LOOK = 5.0
"""Seconds until it is looked again whether another worker's probe was answered."""


class ProbeTurns:
    """This worker's turns at one provider."""

    def __init__(self, provider: str, journal: SharedLimits) -> None:
        self._provider = provider
        self._journal = journal
        self._has_turn = False

    async def take(self, breaker: Breaker, policy: BreakerPolicy) -> bool:
        """Take a turn for a probe that has begun; False: it is another worker's, and the probe is put off."""
        pause = max(breaker.pause, policy.pause)
        try:
            wait = await self._journal.claim_probe(self._provider, pause, policy.max_pause)
        except JournalUnreachable:
            wait = UNREACHABLE_PAUSE
        if wait:
            breaker.put_off(min(wait, LONGEST_LOOK) + random.uniform(0.0, SPREAD))
            return False
        self._has_turn = True
        return True

    def follow(self, breaker: Breaker, tasks: TaskGroup) -> None:
        """Give a turn back when the provider has answered."""
        if self._has_turn and not breaker.is_open:
            self._has_turn = False
            tasks.start_soon(self._give_back)

    async def _give_back(self) -> None:
        with suppress(JournalUnreachable):  # it ends by itself
            await self._journal.free_probe(self._provider)
