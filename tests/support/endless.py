"""What ends a run in virtual time in which no time passes, since a loop turns without end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio
from trio.abc import Instrument

MOST_TURNS = 100_000
"""Turns of the event loop at one instant; a plan of the simulation takes some tens."""


@contextmanager
def endless_loops_ended(scope: trio.CancelScope) -> Iterator[None]:
    """Cancel a scope when no time passes any more."""
    turns = _Turns(scope)
    trio.lowlevel.add_instrument(turns)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(turns)


class _Turns(Instrument):
    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._instant = -1.0
        self._turns = 0

    def before_io_wait(self, timeout: float) -> None:
        if (now := trio.current_time()) != self._instant:
            self._instant, self._turns = now, 0
        self._turns += 1
        if self._turns > MOST_TURNS:
            self._scope.cancel()
