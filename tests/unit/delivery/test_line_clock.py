"""The line's clock beside one that is set."""

from __future__ import annotations

import pytest

from deliveryd.delivery.line_clock import LineClock
from deliveryd.model import STEP
from deliveryd.runtime.wakeup import AutoResetEvent

HOUR = 3600 * 1_000_000
NOON = 12 * HOUR


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.shown = NOON

    def now(self) -> int:
        """What it was set to."""
        return self.shown


def read_at(clock: LineClock, wall: SetClock, *instants: int) -> list[int]:
    """What the line's clock shows when the other one shows these."""
    read = []
    for wall.shown in instants:
        read.append(clock.now())
    return read


def test_it_all_but_stands_still_where_the_clock_goes_back_a_little() -> None:
    """An hour back is shown at once; less than a second is waited out, and no instant comes twice."""
    wall = SetClock()
    clock = LineClock(wall, AutoResetEvent())
    instants = (NOON, NOON - 10, NOON - STEP + 2, NOON + 1, HOUR, HOUR + 1, HOUR, 15 * HOUR)
    assert read_at(clock, wall, *instants) == [
        NOON, NOON + 1, NOON + 2, NOON + 3, HOUR, HOUR + 1, HOUR + 2, 15 * HOUR,
    ]  # fmt: skip


@pytest.mark.anyio
async def test_it_knows_how_far_ahead_the_journal_is_until_that_has_followed() -> None:
    wall, put_back = SetClock(), AutoResetEvent()
    clock = LineClock(wall, put_back)
    assert read_at(clock, wall, NOON, NOON + 5) == [NOON, NOON + 5]
    wall.shown = HOUR
    assert clock.peek() == (HOUR, NOON + 5 - HOUR)
    assert (clock.now(), clock.in_journal()) == (HOUR, NOON + 5)
    assert await put_back.wait(0)
    ahead = clock.ahead()
    wall.shown = 5  # put back once more before that
    assert (clock.now(), clock.in_journal()) == (5, NOON + 5)
    clock.follow(ahead)
    assert (clock.now(), clock.in_journal()) == (5, HOUR)
    clock.follow(clock.ahead())
    assert (clock.in_journal(), clock.peek()) == (5, (5, 0))
    wall.shown = NOON
    assert (clock.now(), clock.ahead()) == (NOON, 0)
