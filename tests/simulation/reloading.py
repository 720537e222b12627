"""Reloads: the configuration changes while the worker runs, from that of one life to that of another."""

from __future__ import annotations

from collections.abc import Mapping
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
from simulation.looking_up import ANSWERS
from simulation.plan import CHANNELS, PROVIDERS, Life, Person, Plan, Reload
from simulation.scenes import MAY_HAVE_ARRIVED
from simulation.world import World


def reloading_plan(seed: int) -> Plan:
    """The plan of a seed, with reloads in it."""
    plan = with_reloads(Seeded(f"reloads {seed}"), seeded_plan(seed))
    return with_mappings(Seeded(f"mappings {seed}"), plan)


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


def with_mappings(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, or with reloads after which mappings need more, or what they needed before.

    Every customer has an address of each kind, so that it makes no channel unreachable.
    """
    if choices.number(0, 2):
        return plan
    people = {message.customer_id: _NOBODY for message in plan.messages} | dict(plan.people)
    renewal = plan.renewal
    if renewal is not None:
        renewal = replace(renewal, people=_whole({**people, **renewal.people}))
    changes = choices.one_of(((True,), (True, False), (True, False, True)))
    return replace(
        plan,
        tuning=replace(plan.tuning, lookup_after=choices.one_of((None, None, 0.5))),
        people=_whole(people),
        renewal=renewal,
        troubles={
            **plan.troubles,
            "provider": tuple(choices.one_of(MAY_HAVE_ARRIVED) for _ in range(choices.one_of((2, 4, 8)))),
            "lookup": tuple(choices.one_of(ANSWERS) for _ in range(choices.one_of((0, 2, 8)))),
        },
        reloads=tuple(
            Reload(
                choices.number(1, 40) / 20, Life(CHANNELS, (), None, needs_more=needs_more),
                take=100, in_flight=100, is_elsewhere=choices.number(0, 1) > 0,
            )
            for needs_more in changes
        ),
    )  # fmt: skip


_NOBODY = Person(None, None, None, None)


def _whole(people: Mapping[int, Person]) -> Mapping[int, Person]:
    """The people, each with an address of each kind."""
    return {
        id_: replace(
            person,
            phone=person.phone or f"+4477009002{id_:02}",
            email=person.email or f"nobody{id_}@example.org",
        )
        for id_, person in people.items()
    }


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
            self._next = _tuned(configure(reload.to, world.plan, world.folder, world.base_url), reload)
            with suppress(ConfigError):  # it is about to end
                found = await reloader.reload(accept_orphans=True)
                if found.changes:
                    world.reconfigure(reload.to)
                    continue
            self._next = before
