"""Waking: an event that keeps a signal until the next wait, a parking lot, heartbeats, on a virtual clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from trio.testing import MockClock

from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent, Heartbeats, ParkingLot


def on_a_jumping_clock(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario in which waiting costs no time."""
    trio.run(scenario, clock=MockClock(autojump_threshold=0))


@pytest.mark.anyio
async def test_a_ring_before_anybody_waits_is_heard() -> None:
    event_ = AutoResetEvent()
    event_.set()
    assert await event_.wait()


@pytest.mark.anyio
async def test_many_rings_are_heard_once() -> None:
    event_ = AutoResetEvent()
    for _ in range(3):
        event_.set()
    assert await event_.wait()
    assert not await event_.wait(0)


@pytest.mark.anyio
async def test_a_ring_wakes_who_waits() -> None:
    event_ = AutoResetEvent()
    heard: list[bool] = []

    async def listen() -> None:
        heard.append(await event_.wait(60))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await checkpoint()
        assert heard == []
        event_.set()
    assert heard == [True]


@pytest.mark.anyio
async def test_a_ring_while_the_last_one_is_being_answered_is_not_lost() -> None:
    """Work that comes while a loop works is done in its next turn."""
    event_ = AutoResetEvent()
    turns = 0
    event_.set()
    while await event_.wait(0):
        turns += 1
        if turns < 3:
            event_.set()
    assert turns == 3


def test_who_waits_turns_after_the_longest_wait_without_a_ring() -> None:
    async def scenario() -> None:
        event_ = AutoResetEvent()
        started = anyio.current_time()
        assert not await event_.wait()
        assert anyio.current_time() - started == pytest.approx(HEARTBEAT_INTERVAL)
        assert not await event_.wait(0.5)
        assert anyio.current_time() - started == pytest.approx(HEARTBEAT_INTERVAL + 0.5)

    on_a_jumping_clock(scenario)


@pytest.mark.anyio
async def test_who_came_to_rest_last_is_woken_first() -> None:
    """So a dispatcher with little to do keeps the same few tasks busy."""
    rest = ParkingLot()
    woken: list[str] = []

    async def stay(name: str) -> None:
        await rest.park()
        woken.append(name)

    async with anyio.create_task_group() as tasks:
        for name in ("first", "second", "third"):
            tasks.start_soon(stay, name)
            await anyio.wait_all_tasks_blocked()
        assert rest.unpark(1) == 1
        await anyio.wait_all_tasks_blocked()
        assert woken == ["third"]
        assert rest.unpark(1) == 1
        await anyio.wait_all_tasks_blocked()
        assert woken == ["third", "second"]
        rest.unpark(1)
    assert woken == ["third", "second", "first"]


@pytest.mark.anyio
async def test_no_more_are_woken_than_rest() -> None:
    """Who wakes others learns how many it were, and finds others for the rest of the work."""
    rest = ParkingLot()
    assert rest.unpark(1) == 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rest.park)
        tasks.start_soon(rest.park)
        await anyio.wait_all_tasks_blocked()
        assert rest.unpark(5) == 2
        assert rest.unpark(5) == 0


@pytest.mark.anyio
async def test_who_was_woken_can_rest_again() -> None:
    rest = ParkingLot()
    turns: list[int] = []

    async def work() -> None:
        for turn in range(3):
            await rest.park()
            turns.append(turn)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        for turn in range(3):
            await anyio.wait_all_tasks_blocked()
            assert turns == list(range(turn))
            assert rest.unpark(1) == 1
    assert turns == [0, 1, 2]


@pytest.mark.anyio
async def test_who_was_cancelled_at_rest_harms_neither_who_wakes_nor_who_rests_beside_it() -> None:
    """It counts as one that was woken; in a dispatcher all tasks are cancelled together."""
    rest = ParkingLot()
    cancelled = anyio.CancelScope()
    woken: list[str] = []

    async def stay(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await rest.park()
            woken.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stay, "first", anyio.CancelScope())
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(stay, "second", cancelled)
        await anyio.wait_all_tasks_blocked()
        cancelled.cancel()
        await anyio.wait_all_tasks_blocked()
        assert rest.unpark(2) == 2
    assert woken == ["first"]


def test_the_pulse_tells_how_long_ago_each_loop_turned() -> None:
    """A loop that ended is no stuck one."""

    async def scenario() -> None:
        heartbeats = Heartbeats()
        heartbeats.beat("intake")
        heartbeats.beat("reporting")
        await anyio.sleep(30)
        heartbeats.beat("reporting")
        await anyio.sleep(1)
        assert dict(heartbeats.ages()) == {"intake": pytest.approx(31), "reporting": pytest.approx(1)}
        heartbeats.forget("intake")
        heartbeats.forget("unheard of")
        assert [loop for loop, _ in heartbeats.ages()] == ["reporting"]

    on_a_jumping_clock(scenario)
