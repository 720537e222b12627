"""Messages that wait for a provider that stays down, when another one or the next channel works again."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from deliveryd.channels.base import Dispatch, Refused, TryAgain, Verdict
from deliveryd.delivery.choice import Choice, Idle, Sender
from deliveryd.directory.base import NoDirectory
from deliveryd.model import Customer, Entry
from support.messages import message
from support.two_providers import ACCEPTED, BOTH, BUSY, EMAIL, SMS, A, B, Provider, world_of_two
from support.virtual import VirtualWorld, live

GATEWAY = TryAgain("provider answered 503", may_have_arrived=True)
"""After it the content is kept: the message may have arrived."""

OPENING, EXPIRES = 2, {"delivery": {"expiresAt": "2027-01-15T08:00:30Z"}}
"""The settings id of messages that open a breaker, and expire soon."""


class Registry(NoDirectory):
    """Knows all customers by some fields, until it forgets the one of message 1."""

    def __init__(self, **fields: str) -> None:
        self.fields = fields
        self.forgotten: set[int] = set()

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Any]:
        return {id_: None if id_ in self.forgotten else Customer(id_, self.fields) for id_ in ids}


class Needing(Provider):
    """A provider that needs some fields of the customer."""

    def __init__(self, *fields: str) -> None:
        super().__init__()
        self.customer_fields = frozenset(fields)

    def reaches(self, customer: Customer | None) -> bool:
        return customer is not None and all(customer.fields.get(each) for each in self.customer_fields)


def choosing_a(count: int) -> Sequence[int]:
    """Message ids that choose the provider a."""
    choice = Choice({A: Sender(Provider(), Idle(), 80), B: Sender(Provider(), Idle(), 20)})
    chosen = (id_ for id_ in range(1, 1000) if choice.provider_for(Entry(id_, 1, 1, {}), None) == A)
    return [id_ for id_, _ in zip(chosen, range(count), strict=False)]


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = world_of_two(tmp_path)
    world.service.settings[OPENING] = json.dumps({**EXPIRES, **SMS})
    return world


def a_and_b(world: VirtualWorld) -> tuple[Provider, Provider]:
    a, b = world.channels[A], world.channels[B]
    assert isinstance(a, Provider)
    assert isinstance(b, Provider)
    return a, b


def play(world: VirtualWorld, scene: Callable[[], Awaitable[None]]) -> None:
    """Run a worker beside a scene."""

    async def both() -> None:
        async with world.at_work():
            await scene()

    live(both)


def sent(world: VirtualWorld, ids: Collection[int]) -> int:
    return sum("sent" in world.service.statuses(id_) for id_ in ids)


@pytest.mark.slow
def test_what_waits_for_one_that_cannot_be_reached_is_the_probe_of_another(world: VirtualWorld) -> None:
    """Both were down when it came, and nothing follows it."""
    a, b = a_and_b(world)
    a.verdict = lambda _: BUSY
    b.verdict = lambda _: ACCEPTED if trio.current_time() > 60 else BUSY
    ids = choosing_a(3)

    async def scene() -> None:
        world.service.enqueue(*(message(id_, OPENING) for id_ in range(1000, 1040)))
        await anyio.sleep(20.0)
        a.reachable = b.reachable = False
        await anyio.sleep(30.0)
        world.service.enqueue(*(message(id_) for id_ in ids))
        await anyio.sleep(10.0)
        b.reachable = True
        await anyio.sleep(600.0)

    play(world, scene)
    assert sent(world, ids) == len(ids)


@pytest.mark.slow
def test_what_may_have_arrived_goes_to_the_next_channel_once_that_works(world: VirtualWorld) -> None:
    """It was down too when the first one was given up."""
    world.add(EMAIL)
    world.service.settings[1] = json.dumps(BOTH)
    only_mail = {"content": {"en": {"email": {"subject": "s", "body": "b"}}}}
    world.service.settings[OPENING] = json.dumps({**EXPIRES, **only_mail})
    a, b = a_and_b(world)
    world.channels["email"] = mail = Provider()
    a.verdict = b.verdict = lambda _: GATEWAY
    mail.verdict = lambda _: ACCEPTED if trio.current_time() > 60 else BUSY

    async def scene() -> None:
        world.service.enqueue(*(message(id_, OPENING) for id_ in range(100, 120)))
        await anyio.sleep(50.0)
        world.service.enqueue(*(message(id_) for id_ in range(1, 13)))
        await anyio.sleep(10.0)
        a.reachable = b.reachable = False
        await anyio.sleep(3000.0)
        world.service.enqueue(*(message(id_) for id_ in range(200, 210)))
        await anyio.sleep(600.0)

    play(world, scene)
    assert sent(world, range(1, 13)) == 12


@pytest.mark.slow
def test_what_may_have_arrived_goes_to_a_provider_that_needs_more_of_the_customer(
    world: VirtualWorld,
) -> None:
    """What it said, and to whom, is kept with the fields of the one that it may have arrived at."""
    text = world.path.read_text(encoding="utf-8").replace("weight = 80", 'weight = 80\nrate = "1/s"')
    world.path.write_text(text.replace("breaker.failures = 5", "breaker.failures = 40"), encoding="utf-8")
    world.directory = Registry(phone="+1", country="AT")
    world.channels[A], world.channels[B] = a, b = Needing("phone"), Needing("phone", "country")
    a.verdict, b.verdict = lambda _: GATEWAY, lambda _: ACCEPTED
    ids = choosing_a(30)

    async def scene() -> None:
        world.service.enqueue(*(message(id_) for id_ in ids))
        await anyio.sleep(60.0)
        a.reachable = False
        await anyio.sleep(60.0)

    play(world, scene)
    assert sent(world, ids) == len(ids)


def forgotten_after_its_first_try(world: VirtualWorld, until: float, then: Verdict) -> int:
    """A message that may have arrived at a, which is down until then, and that no other one reaches."""
    world.directory = registry = Registry(phone="+1")
    world.channels[A], world.channels[B] = a, b = Needing("phone"), Needing("phone")
    [first] = choosing_a(1)

    def answer(dispatch: Dispatch) -> Verdict:
        if trio.current_time() >= until:
            return ACCEPTED
        if dispatch.entry.id == first:
            registry.forgotten.add(1)
            return GATEWAY
        return BUSY

    a.verdict = answer
    b.verdict = lambda _: then
    return first


@pytest.mark.slow
def test_what_waits_alone_is_the_probe_of_its_provider_once_that_is_reached(world: VirtualWorld) -> None:
    """Else it would wait until it is looked at again, five minutes later."""
    first = forgotten_after_its_first_try(world, 60.0, ACCEPTED)
    a, _ = a_and_b(world)

    async def scene() -> None:
        world.service.enqueue(message(first))
        await anyio.sleep(0.5)
        a.reachable = False
        world.service.enqueue(*(message(id_, OPENING, 2) for id_ in choosing_a(7)[1:]))
        await anyio.sleep(59.5)
        a.reachable = True
        await anyio.sleep(100.0)

    play(world, scene)
    assert sent(world, [first]) == 1


def test_what_no_other_reaches_is_not_looked_at_each_second(world: VirtualWorld) -> None:
    """While a connection can be made to the other one, which is down as well and waits for a probe."""
    first = forgotten_after_its_first_try(world, 600.0, BUSY)
    a, _ = a_and_b(world)

    async def scene() -> None:
        world.service.enqueue(message(first))
        await anyio.sleep(0.5)
        a.reachable = False
        world.service.enqueue(*(message(id_, OPENING, 2) for id_ in range(1000, 1040)))
        await anyio.sleep(60.0)
        assert (first, f"alone {A}") in world.journal_rows("SELECT id, waits_for FROM message")

    play(world, scene)


@pytest.mark.slow
def test_what_may_have_arrived_is_no_probe_of_settings_that_the_other_one_refuses(
    world: VirtualWorld,
) -> None:
    """It couldn't come back from there, while all others of its settings are sent by its own provider."""
    text = world.path.read_text(encoding="utf-8").replace("weight = 80", "weight = 20")
    patient = "breaker.failures = 30\nretry.attempts = 50"
    world.path.write_text(text.replace("breaker.failures = 5", patient), encoding="utf-8")
    world.service.settings[2] = json.dumps(SMS)
    a, b = a_and_b(world)
    a.verdict = lambda _: GATEWAY if 60 < trio.current_time() < 200 else ACCEPTED
    b.verdict = lambda each: Refused("no such template", "b") if each.entry.settings_id == 1 else ACCEPTED

    async def scene() -> None:
        world.service.enqueue(*(message(id_, 2) for id_ in range(1, 20)))
        world.service.enqueue(*(message(id_) for id_ in range(100, 180)))
        await anyio.sleep(61.0)
        world.service.enqueue(*(message(id_) for id_ in range(200, 240)))
        await anyio.sleep(600.0)

    play(world, scene)
    assert sent(world, range(200, 240)) >= 39  # the breaker of a may open with one of them


@pytest.mark.slow
def test_what_no_other_provider_reaches_stays_with_its_own(world: VirtualWorld) -> None:
    """An answer without certainty doesn't end it, while the other one works for others."""
    world.directory = Registry(phone="+1")
    world.channels[A], world.channels[B] = a, b = Needing("phone"), Needing("phone", "country")
    a.verdict = lambda _: ACCEPTED if trio.current_time() > 120 else GATEWAY
    ids = choosing_a(30)

    async def scene() -> None:
        world.service.enqueue(*(message(id_) for id_ in ids))
        await anyio.sleep(600.0)

    play(world, scene)
    assert sent(world, ids) == len(ids)
    assert not b.attempts
