"""arq with Redis: one process, a hundred jobs at a time, no results kept, aiohttp."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, ClassVar

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from queueing import REDIS, produce, work_with
from queueing_async import AsyncSender
from templates import Json

SETTINGS = RedisSettings.from_dsn(REDIS)
CONNECTIONS = 20
QUIET = {"version": 1}
"""No log lines of arq itself, which are two for each job."""


asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # the worker asks for a loop by itself


async def deliver(context: dict[str, Any], message: Json) -> None:
    """One message."""
    await context["sender"].send(message)


async def _open(context: dict[str, Any]) -> None:
    context["sender"] = await AsyncSender.open()


async def _close(context: dict[str, Any]) -> None:
    await context["sender"].close()


class Worker:
    """arq reads its options from here."""

    functions: ClassVar = [deliver]
    redis_settings = SETTINGS
    on_startup = _open
    on_shutdown = _close
    max_jobs = 100
    keep_result = 0
    poll_delay = 0.02
    queue_read_limit = 500


async def _enqueue_all() -> None:
    pool = await create_pool(SETTINGS)
    loop = asyncio.get_running_loop()

    async def enqueue(messages: list[Json]) -> None:
        for start in range(0, len(messages), CONNECTIONS):
            together = messages[start : start + CONNECTIONS]
            await asyncio.gather(*[pool.enqueue_job("deliver", message) for message in together])

    await asyncio.to_thread(
        produce, lambda messages: asyncio.run_coroutine_threadsafe(enqueue(messages), loop).result()
    )
    await pool.aclose()


if __name__ == "__main__":
    work_with(
        [sys.executable, "-m", "arq", "queue_arq.Worker", "--custom-log-dict", "queue_arq.QUIET"],
        lambda: uvloop.run(_enqueue_all()),
    )
