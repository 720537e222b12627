"""Waiting for work: a bell that loses no ring, and the pulse of loops, on a clock that jumps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from trio.testing import MockClock

from deliveryd.wakeup import LONGEST_WAIT, Bell, Pulse


def on_a_jumping_clock(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario in which waiting costs no time."""
    trio.run(scenario, clock=MockClock(autojump_threshold=0))


@pytest.mark.anyio
async def test_a_ring_before_anybody_waits_is_heard() -> None:
    bell = Bell()
    bell.ring()
    assert await bell.wait()


@pytest.mark.anyio
async def test_many_rings_are_heard_once() -> None:
    bell = Bell()
    for _ in range(3):
        bell.ring()
    assert await bell.wait()
    assert not await bell.wait(0)


@pytest.mark.anyio
async def test_a_ring_wakes_who_waits() -> None:
    bell = Bell()
    heard: list[bool] = []

    async def listen() -> None:
        heard.append(await bell.wait(60))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await checkpoint()
        assert heard == []
        bell.ring()
    assert heard == [True]


@pytest.mark.anyio
async def test_a_ring_while_the_last_one_is_being_answered_is_not_lost() -> None:
    """Work that comes while a loop works is done in its next turn."""
    bell = Bell()
    turns = 0
    bell.ring()
    while await bell.wait(0):
        turns += 1
        if turns < 3:
            bell.ring()
    assert turns == 3


def test_who_waits_turns_after_the_longest_wait_without_a_ring() -> None:
    async def scenario() -> None:
        bell = Bell()
        started = anyio.current_time()
        assert not await bell.wait()
        assert anyio.current_time() - started == pytest.approx(LONGEST_WAIT)
        assert not await bell.wait(0.5)
        assert anyio.current_time() - started == pytest.approx(LONGEST_WAIT + 0.5)

    on_a_jumping_clock(scenario)


def test_the_pulse_tells_how_long_ago_each_loop_turned() -> None:
    """A loop that ended is no stuck one."""

    async def scenario() -> None:
        pulse = Pulse()
        pulse.beat("intake")
        pulse.beat("reporting")
        await anyio.sleep(30)
        pulse.beat("reporting")
        await anyio.sleep(1)
        assert dict(pulse.ages()) == {"intake": pytest.approx(31), "reporting": pytest.approx(1)}
        pulse.forget("intake")
        pulse.forget("unheard of")
        assert [loop for loop, _ in pulse.ages()] == ["reporting"]

    on_a_jumping_clock(scenario)
