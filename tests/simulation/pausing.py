"""Operators who pause something for a while: the plans of it, and the orders as they are given."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from deliveryd.control.protocol import LONGEST_LINE, read_reply, socket_address, socket_of, write_request
from deliveryd.errors import DeliverydError
from deliveryd.journal.orders import Action, ItemKind, Order
from simulation.choosing import Choices, Seeded
from simulation.contents import WHOLE
from simulation.drawing import seeded_plan
from simulation.kept_in_file import JOURNAL
from simulation.ledger import Held, channel_served_by
from simulation.plan import (
    CHANNELS,
    HEALTHY,
    End,
    Halt,
    Life,
    Message,
    Offers,
    Plan,
    Step,
    Template,
    Tuning,
)
from simulation.scenes import CHAT_ONLY, WELL
from simulation.world import World

STARTING = 0.5
"""Seconds that a worker has to open its socket."""

AGAIN = 1.0
LENIENCE = 7.0
"""Seconds after its time at which a pause that ends by itself has to be over."""


def plan_with_pauses(seed: int) -> Plan:
    """The plan of a seed, with operators who pause things."""
    return with_pauses(Seeded(f"pauses {seed}"), seeded_plan(seed))


def with_pauses(choices: Choices, plan: Plan) -> Plan:
    """The plan with pauses, or one in which messages are queued when a pause begins."""
    if choices.number(0, 2) == 0:
        return _queued(choices, plan)
    if plan.is_fair or plan.has_spare:
        plan = replace(plan, is_fair=False, has_spare=False)
    ends_by_itself = choices.number(0, 2) == 0
    halts = [halt(choices, plan, ends_by_itself) for _ in range(choices.one_of((1, 1, 2, 3)))]
    return replace(
        plan,
        tuning=choices.one_of((plan.tuning, _slow(plan.tuning))),
        provider_seconds=choices.one_of((plan.provider_seconds, 0.4, 1.5)),
        jumps=() if ends_by_itself else plan.jumps,
        shortages=(),
        suspensions=(),
        halts=tuple({(each.kind, each.key): each for each in halts}.values()),  # one does for each thing
    )


def _queued(choices: Choices, plan: Plan) -> Plan:
    """A slow provider's queue is paused, and the worker may be killed meanwhile; all else is well."""
    own = [each for each in plan.weights if channel_served_by(each) == "messenger"]
    paused = choices.one_of(
        (
            (ItemKind.CHANNEL, "messenger"),
            (ItemKind.SETTINGS, str(HEALTHY)),
            (ItemKind.MESSAGE, "9"),
            *((ItemKind.PROVIDER, each) for each in own),
        )
    )
    killed = End(Step.COMMIT_AFTER, choices.number(15, 60), is_crash=True)
    life = Life(CHANNELS, choices.one_of(((), CHANNELS)), None)
    return replace(
        plan,
        tuning=replace(_slow(plan.tuning), attempts=4, post=500, breaker=10),
        messages=tuple(Message(id_, HEALTHY, 1, WHOLE) for id_ in range(1, 13)),
        malformed=(),
        templates={HEALTHY: Template(CHAT_ONLY, choices.one_of((None, None, 20.0)))},
        troubles=WELL,
        provider_seconds=1.5,
        most_events=500,
        directory_down=(),
        jumps=(),
        shortages=(),
        errands=(),
        lives=(replace(life, end=killed), life),
        offers=Offers.AGAIN,
        hangs=(),
        suspensions=(),
        renewal=None,
        is_fair=False,
        outages=(),
        has_spare=False,
        halts=(Halt(choices.number(10, 40) / 10, 30.0, *paused, ends_by_itself=choices.number(0, 1) == 0),),
    )


def _slow(tuning: Tuning) -> Tuning:
    return replace(tuning, take=100, in_flight=100, concurrency=1)


def halt(choices: Choices, plan: Plan, ends_by_itself: bool) -> Halt:
    """Something that is paused for a while."""
    kinds: Mapping[ItemKind, tuple[str, ...]] = {
        ItemKind.INTAKE: ("intake",),
        ItemKind.CHANNEL: CHANNELS,
        ItemKind.PROVIDER: tuple(plan.weights),
        ItemKind.SETTINGS: tuple(map(str, plan.templates)),
        ItemKind.MESSAGE: tuple(str(message.id) for message in plan.messages),
    }
    kind = choices.one_of(tuple(kinds))
    return Halt(
        at=choices.number(0, 40) / 10,
        seconds=choices.one_of((4.0, 10.0, 40.0)),
        kind=kind,
        key=choices.one_of(kinds[kind]),
        ends_by_itself=ends_by_itself,
    )


class Pausers:
    """Give the orders to pause and to resume, each until it was carried out once, over all lives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._given: dict[Halt, Held | None] = {}
        self._over: set[Halt] = set()
        self.waiting = 0
        """How many pauses are still to begin or to end in this life."""

    def begin(self, tasks: TaskGroup) -> None:
        """A worker runs: send it orders."""
        self.waiting = 0
        for halt in self._world.plan.halts:
            if halt not in self._over:
                self.waiting += 1
                tasks.start_soon(self._halt, halt)

    async def _halt(self, halt: Halt) -> None:
        await anyio.sleep(STARTING)
        await anyio.sleep_until(halt.at)
        while halt not in self._given:
            seconds = halt.seconds if halt.ends_by_itself else None
            begun = anyio.current_time()
            if (done := await self._ask(Action.PAUSE, halt, seconds)) is None:
                await anyio.sleep(AGAIN)
                continue
            ends = begun + halt.seconds if halt.ends_by_itself else float("inf")
            self._given[halt] = held = Held(halt, anyio.current_time(), ends) if done else None
            if held is not None:
                self._world.ledger.held.append(held)
        held = self._given[halt]
        if held is not None:
            await anyio.sleep_until(held.begun + halt.seconds + (LENIENCE if halt.ends_by_itself else 0.0))
            held.ended = min(held.ended, anyio.current_time())
            if not halt.ends_by_itself:
                await self._resume(halt)
        self._over.add(halt)
        self.waiting -= 1

    async def _resume(self, halt: Halt) -> None:
        while await self._ask(Action.RESUME, halt, None) is None:  # noqa: ASYNC110 - in virtual time
            await anyio.sleep(AGAIN)

    async def _ask(self, verb: Action, halt: Halt, seconds: float | None) -> bool | None:
        """Give an order; whether it was carried out, None: it has to be given again."""
        order = Order(verb, halt.kind, (halt.key,), reason="a plan", lasts=seconds)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            with socket_address(socket_of(self._world.folder / JOURNAL)) as address:
                connection.connect(address)
            connection.send(write_request(order))
            await anyio.wait_readable(connection)
            try:
                return bool(read_reply(connection.recv(LONGEST_LINE))["done"])
            except DeliverydError:
                return None
