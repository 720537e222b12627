"""Where blocking work is done: one thread that does it in order, and loses none of it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from deliveryd.runtime.threads import LARGE, Aside, own_thread

pytestmark = pytest.mark.anyio

NAME = "the one"

on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For what only asyncio has: on trio the work goes to a pool of threads."""


async def test_work_is_done_beside_the_event_loop_and_its_result_comes_back() -> None:
    async with own_thread(NAME) as work:
        assert await work(lambda: 7) == 7
        assert await work(threading.get_ident) != threading.get_ident()


@on_asyncio
async def test_what_many_ask_for_is_done_by_one_thread_in_the_order_asked_for() -> None:
    gate = threading.Event()
    done: list[tuple[int, str]] = []

    def step(number: int) -> None:
        gate.wait()
        done.append((number, threading.current_thread().name))

    async with own_thread(NAME) as work, anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(work, lambda number=number: step(number))
        await anyio.wait_all_tasks_blocked()
        assert done == []
        gate.set()
    assert done == [(number, NAME) for number in range(5)]


async def test_an_error_goes_to_who_asked_and_the_next_work_is_done() -> None:
    def fail() -> None:
        raise LookupError("not here")

    async with own_thread(NAME) as work:
        with pytest.raises(LookupError, match="not here"):
            await work(fail)
        assert await work(lambda: 7) == 7


@on_asyncio
async def test_an_iterator_that_ends_in_the_work_is_an_error_like_any_other() -> None:
    """A future takes no StopIteration; who asked would wait for ever."""
    async with own_thread(NAME) as work:
        with pytest.raises(RuntimeError, match="StopIteration"):
            async with asyncio.timeout(10):  # reaches a caller that is shielded, too
                await work(lambda: next(iter(())))
        assert await work(lambda: 7) == 7


async def test_who_is_cancelled_stays_until_the_work_is_done_and_learns_its_result() -> None:
    """What was begun can't be taken back: its result is had first, then the cancellation is felt."""
    began, gate = threading.Event(), threading.Event()
    scope = anyio.CancelScope()
    told: list[str] = []

    def slow() -> str:
        began.set()
        gate.wait()
        return "committed"

    async def ask() -> None:
        with scope:
            told.append(await work(slow))
            await checkpoint()
            told.append("went on")
        told.append("left")

    async with own_thread(NAME) as work, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.to_thread.run_sync(began.wait)
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert told == []
        gate.set()
    assert told == ["committed", "left"]


@on_asyncio
async def test_what_waits_for_its_turn_is_done_though_its_caller_is_cancelled_meanwhile() -> None:
    gate = threading.Event()
    scope = anyio.CancelScope()
    done: list[str] = []

    async def ask() -> None:
        with scope:
            await work(lambda: done.append("second"))

    async with own_thread(NAME) as work, anyio.create_task_group() as tasks:
        tasks.start_soon(work, gate.wait)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        gate.set()
    assert done == ["second"]


@on_asyncio
async def test_the_thread_ends_with_the_block() -> None:
    async with own_thread(NAME) as work:
        thread = await work(threading.current_thread)
        assert thread.is_alive()
    assert not thread.is_alive()


@on_asyncio
async def test_the_thread_ends_with_a_block_that_fails() -> None:
    threads: list[threading.Thread] = []

    async def part() -> None:
        async with own_thread(NAME) as work:
            threads.append(await work(threading.current_thread))
            raise LookupError("not here")

    with pytest.raises(LookupError, match="not here"):
        await part()
    assert [thread.is_alive() for thread in threads] == [False]


@on_asyncio
async def test_owners_of_what_only_computes_take_turns() -> None:
    """One work of each at a time, in one thread for all of them; each owner's in the order asked for."""
    gate = threading.Event()
    done: list[str] = []

    def step(name: str) -> None:
        gate.wait()
        done.append(name)

    first, second = Aside(), Aside()
    async with anyio.create_task_group() as tasks:
        for aside, name in [(first, "a1"), (first, "a2"), (first, "a3"), (second, "b1"), (second, "b2")]:
            tasks.start_soon(aside, partial(step, name))
        await anyio.wait_all_tasks_blocked()
        assert done == []
        gate.set()
    assert done == ["a1", "b1", "a2", "b2", "a3"]


@on_asyncio
async def test_only_what_is_large_is_computed_beside_the_event_loop() -> None:
    aside = Aside()
    assert await aside.sized(LARGE, threading.get_ident) == threading.get_ident()
    assert await aside.sized(LARGE + 1, threading.get_ident) != threading.get_ident()


async def test_an_error_of_what_computes_goes_to_who_asked_and_the_next_is_done() -> None:
    aside = Aside()
    with pytest.raises(ValueError, match="invalid literal"):
        await aside(lambda: int("x"))
    assert await aside(lambda: 7) == 7
