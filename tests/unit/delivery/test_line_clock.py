"""The line's clock beside one that is set."""

from __future__ import annotations

import pytest

from deliveryd.delivery.line_clock import LineClock
from deliveryd.model import STEP
from deliveryd.runtime.wakeup import AutoResetEvent

MINUTE = 60 * 1_000_000
HOUR = 60 * MINUTE
NOON = 12 * HOUR


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.shown = NOON
        self.gone = 0

    def now(self) -> int:
        """What it was set to."""
        return self.shown

    def elapsed(self) -> int:
        """Microseconds that went by."""
        return self.gone


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
async def test_it_measures_how_far_ahead_the_journal_is_until_that_has_followed() -> None:
    wall, put_back = SetClock(), AutoResetEvent()
    clock = LineClock(wall, put_back)
    wall.shown, wall.gone = NOON + 5, 5
    assert (clock.now(), clock.ahead()) == (NOON + 5, 0)
    wall.shown, wall.gone = HOUR, MINUTE
    assert (clock.ahead(), clock.in_journal()) == (11 * HOUR + MINUTE, NOON + MINUTE)
    assert clock.now() == HOUR
    assert await put_back.wait(0)
    wall.shown = 5  # put back once more before that is followed
    assert clock.in_journal() == NOON + MINUTE
    clock.follow(11 * HOUR + MINUTE)
    assert (clock.now(), clock.in_journal()) == (5, HOUR)
    clock.follow(clock.ahead())
    assert (clock.ahead(), clock.in_journal()) == (0, 5)


def test_what_is_put_forward_and_back_again_leaves_nothing_to_follow() -> None:
    wall = SetClock()
    clock = LineClock(wall, AutoResetEvent())
    wall.shown = NOON + HOUR
    assert (clock.ahead(), clock.in_journal()) == (-HOUR, NOON)
    wall.shown, wall.gone = NOON + MINUTE, MINUTE
    assert (clock.ahead(), clock.in_journal()) == (0, NOON + MINUTE)


@pytest.mark.parametrize("back", [HOUR, -HOUR])
def test_a_steps_due_time_is_as_far_ahead_as_the_journal_once_it_is_committed(back: int) -> None:
    """Of steps made before and after the clock is set, given and committed before due times move or after."""
    wall = SetClock()
    clock = LineClock(wall, AutoResetEvent())
    before, first = NOON, clock.reading()
    wall.shown, wall.gone = NOON - back + MINUTE, MINUTE
    after, second = wall.shown, clock.reading()
    assert (first(before), second(before), second(after)) == (0, 0, back)
    clock.follow(back)
    assert (first(before), second(before), second(after)) == (-back, -back, 0)
    wall.shown, wall.gone = wall.shown + 5, wall.gone + 5
    third = clock.reading()
    assert third(after) == 0
    assert abs(third(before) + back) < 2 * MINUTE


def test_a_step_that_was_made_long_ago_waits_from_then_on() -> None:
    """The disk was full meanwhile."""
    wall = SetClock()
    clock = LineClock(wall, AutoResetEvent())
    wall.shown, wall.gone = NOON + HOUR, HOUR
    assert clock.reading()(NOON) == 0
