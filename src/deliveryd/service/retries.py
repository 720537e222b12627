"""Retries within one call, after the first attempt failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from deliveryd.errors import ServiceUnavailable
from deliveryd.runtime.backoff import backoff

T = TypeVar("T")

FIRST_RETRY_PAUSE = 0.2
LONGEST_BACKOFF = 2.0
"""Seconds between the tries of one call, where the service asks for no pause."""


async def try_again(
    once: Callable[[], Awaitable[T]],
    first: Exception,
    tries: int,
    is_worth_another: Callable[[BaseException], bool],
    sleep: Callable[[float], Awaitable[None]],
) -> T:
    """Retry after a first attempt raised `first`, up to `tries` attempts in total.

    Raises the last attempt's error, at once if `is_worth_another` rejects it.
    """
    async for attempt in AsyncRetrying(
        stop=stop_after_attempt(tries),
        wait=_wait,
        retry=retry_if_exception(is_worth_another),
        sleep=sleep,
        reraise=True,
    ):
        with attempt:
            if attempt.retry_state.attempt_number == 1:
                raise first
            return await once()
    raise AssertionError("tenacity always returns or raises")


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.after if isinstance(error, ServiceUnavailable) else None
    return asked if asked is not None else backoff(FIRST_RETRY_PAUSE, LONGEST_BACKOFF, state.attempt_number)
