"""Asks providers whether they have the messages that are held in doubt.

Only the command that asks loads this module: it opens providers as a worker does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import anyio

from deliveryd.channels.base import AskLater, Channel, Dispatch, Found, Unknown
from deliveryd.config import Config
from deliveryd.journal.attention import InDoubtMessage
from deliveryd.model import SECOND, Entry, Rendered, WallClock, format_duration
from deliveryd.worker.wiring import open_provider

AT_A_TIME = 10
"""Questions that are asked at the same time."""

_NOTHING = Rendered("", "", {})


async def ask_providers(config: Config, held: Sequence[InDoubtMessage]) -> Mapping[int, Found]:
    """Ask about each message, by its id. Must be called within an asyncio loop. Raises ConfigError."""
    found: dict[int, Found] = {}
    limit = anyio.CapacityLimiter(AT_A_TIME)
    async with AsyncExitStack() as stack:
        providers = {}
        for name in {each.provider for each in held} & config.channels.providers.keys():
            providers[name] = open_provider(config, config.channels.providers[name])
            stack.push_async_callback(providers[name].aclose)

        async def ask(each: InDoubtMessage) -> None:
            async with limit:
                found[each.message_id] = await _ask(providers.get(each.provider), each)

        async with anyio.create_task_group() as tasks:
            for each in held:
                tasks.start_soon(ask, each)
    return found


async def _ask(provider: Channel | None, held: InDoubtMessage) -> Found:
    if provider is None:
        return Unknown(f"its provider {held.provider} isn't configured")
    if provider.lookup_after is None:
        return Unknown(f"its provider {held.provider} can't be asked: configure lookup")
    clock = WallClock()
    if clock.now() - held.since < provider.lookup_after * SECOND:
        return AskLater(
            f"in doubt for less than lookup.after, which is {format_duration(provider.lookup_after)}"
        )
    entry = Entry(held.message_id, 0, 0, {}, provider=held.provider, doubt=True)
    dispatch = Dispatch(held.key, entry, None, _NOTHING, None, clock, held.provider_id)
    return await provider.look_up(dispatch)
