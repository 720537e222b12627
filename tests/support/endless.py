"""Virtual time: a clock that jumps, and what ends a run in which a loop turns without end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import trio
from trio.abc import Instrument
from trio.testing import MockClock

MOST_TURNS = 100_000
"""Turns of the event loop at one instant; a plan of the simulation takes some tens."""

LOOK_EVERY = 1000
"""Turns between two looks at the time."""


def jumping_clock() -> MockClock:
    """A clock that jumps to the next deadline when nothing else is to be done.

    The clock of this machine and the event loop's statistics, which MockClock asks each time, are left out:
    hours of virtual time are hundreds of thousands of looks at the time.
    """
    clock = MockClock(autojump_threshold=0)

    def jump_to_next() -> None:
        deadline = trio._core._run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        if clock._virtual_base < deadline < inf:
            clock._virtual_base = deadline

    clock.current_time = lambda: clock._virtual_base  # type: ignore[method-assign]
    clock._autojump = jump_to_next  # type: ignore[method-assign]
    return clock


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
        self._turns += 1
        if self._turns % LOOK_EVERY:
            return
        if (now := trio.current_time()) != self._instant:
            self._instant, self._turns = now, 0
        elif self._turns > MOST_TURNS:
            self._scope.cancel()
