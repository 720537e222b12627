"""Reloads: the configuration changes while the worker runs, from that of one life to that of another."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup
from pydantic import BaseModel

from deliveryd.config import Config, Examined
from deliveryd.errors import ConfigError
from deliveryd.worker.reload import Reloader
from simulation.choosing import Choices, Seeded
from simulation.drawing import seeded_plan
from simulation.plan import CHANNELS, PROVIDERS, Life, Plan, Reload
from simulation.world import World


def reloading_plan(seed: int) -> Plan:
    """The plan of a seed, with reloads in it."""
    return with_reloads(Seeded(f"reloads {seed}"), seeded_plan(seed))


def with_reloads(choices: Choices, plan: Plan) -> Plan:
    """The plan with reloads of each of its lives; without errands, which go by the number of a life."""
    weights = dict(plan.weights)
    for channel in CHANNELS:
        for provider in PROVIDERS[channel][: choices.one_of((1, 2, 2, 3))]:
            weights.setdefault(provider, choices.one_of((1, 3, 20)))
    count = choices.one_of((1, 1, 2, 3))
    reloads = tuple(_reload(choices, weights) for _ in range(count))
    return replace(
        plan, weights=weights, reloads=reloads, errands=(), has_spare=False, is_fair=False, jumps=()
    )


def _reload(choices: Choices, weights: dict[str, int]) -> Reload:
    channels = choices.one_of((CHANNELS, CHANNELS, ("sms",), ("sms", "email"), ("messenger", "email")))
    added = [each for each in weights if each not in CHANNELS]
    removed = choices.one_of((0, 1, 2)) if added else 0
    to = Life(
        channels,
        choices.one_of(((), (), CHANNELS)),
        None,
        removed=tuple(choices.one_of(added) for _ in range(removed)),
        disabled=tuple(choices.one_of(tuple(weights)) for _ in range(choices.one_of((0, 0, 1, 2)))),
    )
    return Reload(
        after=choices.number(0, 60) / 20,
        to=to,
        take=choices.one_of((100, 7, 2)),
        in_flight=choices.one_of((100, 10, 3)),
        is_elsewhere=choices.number(0, 1) > 0,
    )


def _tuned(config: Config, reload: Reload) -> Config:
    queue = config.queue.model_copy(update={"batch_size": reload.take, "max_in_flight": reload.in_flight})
    if not reload.is_elsewhere:
        return config.model_copy(update={"queue": queue})
    channels = {
        name: channel.model_copy(
            update={
                "providers": {
                    each: provider.model_copy(update={"options": _elsewhere(provider.options)})
                    for each, provider in channel.providers.items()
                }
            }
        )
        for name, channel in config.channels.configured.items()
    }
    configured = config.channels.model_copy(update={"configured": channels})
    return config.model_copy(update={"queue": queue, "channels": configured})


def _elsewhere(options: BaseModel) -> BaseModel:
    """Options that differ, so that the adapter is opened anew."""
    return options.model_copy(update={"provider_id": "/id", "headers": {"X-Elsewhere": "1"}})


class Reloads:
    """Reloads a worker as the plan says."""

    def __init__(self, world: World, first: Config) -> None:
        self._world = world
        self._next = first

    def examine(self) -> Examined:
        """What the file says now."""
        return Examined(self._next, [])

    def begin(self, reloader: Reloader, tasks: TaskGroup) -> None:
        """A worker runs: change its configuration now and then."""
        tasks.start_soon(self._run, reloader)

    async def _run(self, reloader: Reloader) -> None:
        from simulation.worker import configure  # noqa: PLC0415  # which has this one

        world = self._world
        for reload in world.plan.reloads:
            await anyio.sleep(reload.after)
            before = self._next
            self._next = _tuned(configure(reload.to, world.plan, world.folder), reload)
            with suppress(ConfigError):  # it is about to end
                found = await reloader.reload(accept_orphans=True)
                if found.changes:
                    world.reconfigure(reload.to)
                    continue
            self._next = before
