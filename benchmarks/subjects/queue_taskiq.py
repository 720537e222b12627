"""Taskiq with Redis streams, which it reads by the hundred: one process, a hundred tasks, aiohttp."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from queueing import REDIS, produce, work_with
from queueing_async import AsyncSender
from taskiq import TaskiqEvents, TaskiqState
from taskiq_redis import RedisStreamBroker
from templates import Json

CONNECTIONS = 20

broker = RedisStreamBroker(REDIS, consumer_id="0-0", max_connection_pool_size=CONNECTIONS)


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def _open(state: TaskiqState) -> None:
    state.sender = await AsyncSender.open()


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def _close(state: TaskiqState) -> None:
    await state.sender.close()


@broker.task(task_name="deliver")
async def deliver(message: Json) -> None:
    """One message."""
    await broker.state.sender.send(message)


async def _enqueue_all() -> None:
    await broker.startup()
    loop = asyncio.get_running_loop()

    def enqueue(messages: list[Json]) -> None:
        asyncio.run_coroutine_threadsafe(_enqueue(messages), loop).result()

    await asyncio.to_thread(produce, enqueue)
    await broker.shutdown()


async def _enqueue(messages: list[Json]) -> None:
    await asyncio.gather(*[deliver.kiq(message) for message in messages])


if __name__ == "__main__":
    options = [
        "--workers",
        "1",
        "--max-async-tasks",
        "100",
        "--log-level",
        "WARNING",
        "--no-parse",
        "--ack-type",
        "when_received",
    ]
    work_with(
        [sys.executable, "-m", "taskiq", "worker", "queue_taskiq:broker", *options],
        lambda: uvloop.run(_enqueue_all()),
    )
